"""Callbacks on the events of a search, in the driver process.

search_progress  Progress: a live table on a terminal, one line per event in a log or a notebook
retention        Delete checkpoints of trials that are not among the best
error_traces     Write the traceback of each failed trial to a file
user             Load the user's callbacks, and catch their errors
"""
