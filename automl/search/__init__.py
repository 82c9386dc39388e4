"""Searches for the placement of attention.

configuration      Create one configuration from a space or a trial
search             A search with its trials, and what can be done with it
run_search         Start and resume a search
prepare            Check settings before anything is trained, and complete them with defaults
driver             Run the trials of a search on Ray, and write its result
earlier            Learn from the trials of an earlier search, for `--warm-start`
placement_problem  The placements of a search's space and their costs, for `automl solve`
solve              Find the best placement under limits after a search, without training
studies            Published experiments, each shown beside the figures of its source
"""
