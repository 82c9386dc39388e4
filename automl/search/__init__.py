"""Searches for the placement of attention.

__main__       `python -m automl.search ...` is `automl search ...`
configuration  Create one configuration from a space or a trial
checks         Check settings before anything is trained
default_space  Defaults that depend on the data: space, backbone, size, epochs
search         A search with its trials, and what can be done with it
run_search     Start and resume a search
prior          Read the effects that earlier searches estimated, for `--prior`
solve          Find the best placement under limits after a search, without training
warm_start     Compare the settings of an earlier search with those of a new one
"""
