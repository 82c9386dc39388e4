"""Callbacks on the events of a search, in the driver process.

search_progress  Progress: a live table on a terminal, one line per event in a log or a notebook
retention        Delete checkpoints of trials that are not among the best, and write tracebacks of errors
user             Load the user's callbacks, and catch their errors
"""
