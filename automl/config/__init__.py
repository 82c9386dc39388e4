"""User settings of a search: settings, limits, units, and how models run on a device.

settings   User settings of a search, stored in its `search.json`
summary    Results that show themselves in a few lines, as text and in a notebook
device     The device that a model runs on; the only module that names CUDA's devices or Apple's
escape     One escaping function for each kind of output that names of others reach
keywords   Gives a function the keyword arguments of a class, for `help` and for type checkers
limits     Limits on what a model may cost, passed to the sampler as constraints
runtime    Where and how a training runs: device, precision, workers
terminal   Escapes control characters in what commands print
user_code  Names the user-defined code that a command runs, and refuses to run it unasked
units      Parses and formats quantities: `2h30m`, `5M`, `2GB`
"""
