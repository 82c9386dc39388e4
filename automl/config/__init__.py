"""Settings of a search, limits, and devices.

settings        Settings of a search, stored in its `search.json`
search_options  Declare the settings of a search: types, defaults, options and text
setting_checks  Check the settings of a search
device          Code specific to CUDA or MPS, and generators of random numbers
limits          Limits on the costs of a model, passed to the sampler as constraints
runtime         Device, precision and workers of a training
"""
