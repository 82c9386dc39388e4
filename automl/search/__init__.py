"""The main job: search where attention goes.

__main__       `python -m automl.search ...` is `automl search ...`
configuration  Makes one configuration: of a space, or of a trial, with values that are set
checks         Checks that settings can work, before anything is trained
default_space  What a search chooses by its data: the space, the backbone, the size, the epochs
result         The result of a search, as a value and as JSON
run_search     Starts and resumes a search
warm_start     Whether the scores of an earlier search are comparable with a new one's
"""
