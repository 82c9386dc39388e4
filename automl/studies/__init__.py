"""Studies: published experiments, nearly all of them grids, each shown beside the figures of its source.

table    The studies: their grids, published figures and sources
figures  Published figures beside those of a grid
ssa      The comparison of SimpleSelfAttention at equal time, in two grids
larnn    The two searches of LARNN's author
run      Runs a study
"""
