"""Studies: published experiments, nearly all of them grids, each shown beside the figures of its source.

options    The options of `study`
figures    Published figures beside those of a grid, and how this differs from the source
run_study  Runs a study
"""
