"""Settings of a search, and devices.

settings        Settings of a search in one flat form, parsed to the four nouns of its `search.json`
nouns           What may be drawn and its limits, the trials, how one training runs, and where
search_options  Declare the settings of a search: types, defaults, options and text
device          Code specific to CUDA, and generators of random numbers
runtime         Device, precision and workers of a training
"""
