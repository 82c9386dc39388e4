"""User settings of a search: settings, limits, units, and how models run on a device.

settings  User settings of a search, stored in its `search.json`
summary   Results that show themselves in a few lines, as text and in a notebook
limits    Limits on what a model may cost, passed to the sampler as constraints
runtime   Where and how a training runs: device, precision, workers
units     Parses and formats quantities: `2h30m`, `5M`, `2GB`
"""
