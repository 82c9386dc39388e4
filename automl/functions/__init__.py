"""Training functions: the user's own training loop as a trial.

trial        `Trial`, what a training function gets
start        Runs the start of a function, which declares its model, hyperparameters and epochs
space        The search space of a function
inputs       Batches of a function's example
generators   Random generators of Python, NumPy and torch

`automl.training.running_trial` runs a whole function.
"""
