"""The training loop of one model: steps, optimiser, checkpoints.

loop        The training loop: a generator that yields one record of metrics an epoch
step        One training step, and the ways to run it
optimiser   Optimisers and learning-rate schedules, as functions of the training's configuration
checkpoint  A configuration and what was learned under it, in one file that executes nothing when read
graphs      Steps as CUDA graphs
clock       Times that a busy machine hardly moves
sync_norm   Batch norm over the batches of all workers
lr_find     A learning-rate range test
"""
