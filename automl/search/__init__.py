"""The main job: search where attention goes.

__main__  `python -m automl.search ...` is `automl search ...`
result    The result of a search, as a value and as JSON
run       Starts and resumes a search
"""
