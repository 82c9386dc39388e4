"""The main job: search where attention goes.

__main__       `python -m automl.search ...` is `automl search ...`
default_space  The space of a search that is given data and nothing else
result         The result of a search, as a value and as JSON
run            Starts and resumes a search
warm_start     Whether the scores of an earlier search are comparable with a new one's
"""
