"""The training loop of one model: steps, optimiser, checkpoints.

loop             The training loop: a generator that yields one record of metrics per epoch; averaged weights
step             One training step, the modes of running it, and the compiled layers
optimiser        Optimisers and learning-rate schedules, as functions of the training's configuration
checkpoint       Checkpoints: configuration, weights and optimiser state in one file
clock            Timers that are robust to other load: processor time on a CPU, events on a GPU
sync_norm        Batch norm over the batches of all workers
lr_find          A learning-rate range test
"""
