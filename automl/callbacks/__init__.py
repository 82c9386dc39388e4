"""Callbacks on the events of a search, in the process that drives it.

search_progress  Progress: a live table on a terminal, one line per event in a log, one output in a notebook
notebook         One output of a notebook's cell, which is replaced while a search runs
prometheus       Metrics for Prometheus, which Ray's agents export from every node
retention        Deletes checkpoints of trials that are not among the best
error_traces     Writes the traceback of each failed trial to a file
user             Loads the callbacks of the user, and keeps their errors from the search
tensorboard      Writes the scores of trials for TensorBoard
"""
