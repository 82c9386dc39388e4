"""Searches for the placement of attention.

configuration      Create one configuration from a space or a trial
result             The result of a search: its trials, and what they show
run_search         Start, load and resume a search, and what can be done with one
status             The state of a search, running or not, and the list of all searches
preview            Estimate the cost and power of a search: `automl search --dry-run`
prepare            Check settings before anything is trained, and complete them with defaults
driver             Run the trials of a search on Ray, and write its result
solve              Find the best placement under limits after a search, without training
studies            Published experiments, each shown beside the figures of its source
"""
