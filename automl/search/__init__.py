"""The main job: search where attention goes.

__main__  `python -m automl.search ...` is `automl search ...`
result    What a search found, as a value and as JSON
run       The main job: search where attention goes
"""
