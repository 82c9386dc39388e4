"""Listeners hear of every trial in the process that drives a search.

progress      A search as it goes: a live table on a terminal, one line an event in a log
prometheus    A search in numbers for Prometheus, which Ray's own agents export from every node
retention     Which checkpoints stay on disk
error_traces  Why trials failed, in a file each
"""
