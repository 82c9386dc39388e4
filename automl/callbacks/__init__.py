"""Callbacks on the events of a search, in the driver process.

search_progress  Progress: a line for each trial that ends, and for long epochs
retention        Delete checkpoints of trials that are not among the best, and write tracebacks of errors
user             Load the user's callbacks, and catch their errors
"""
