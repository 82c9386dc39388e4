"""Studies: published experiments, nearly all of them grids, each shown beside the figures of its source.

study_table    The studies: their grids, published figures and sources
options        The options of `study`
figures        Published figures beside those of a grid, and how this differs from the source
ssa_studies    The comparison of SimpleSelfAttention at equal time, in two grids
larnn_studies  The two searches of LARNN's author
run_study      Runs a study
"""
