"""What a person may say about a search: settings, limits, units, and how models run on a device.

settings  What a person may say about a search, as one value that is kept in the search's folder
limits    Limits on what a model may cost, told to the sampler as constraints
runtime   Where and how a training runs: device, precision, and the workers beside it
units     Numbers as people write them on a command line: `2h30m`, `5M`, `2GB`
"""
