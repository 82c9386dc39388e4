"""The training loop of one model: steps, optimiser, checkpoints.

checkpoint  Checkpoints: a configuration and what was learned under it, in one file that executes nothing wh
clock       Times that a busy machine hardly moves
graphs      Steps as CUDA graphs: capturing one, finding out whether its replays are right, and on which GPU
loop        The training loop: a generator that yields one record of metrics an epoch, for any task and devi
lr_find     A learning-rate range test: the rate grows each step, and the loss shows where it helps and wher
optimiser   Optimisers and learning-rate schedules, as functions of the training's configuration
step        One training step, and the ways to run it
sync_norm   Batch norm over the batches of all workers, so that W workers train what one would on the whole
"""
