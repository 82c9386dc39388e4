"""What a person may say about a search: settings, limits, units, and how models run on a device.

limits    Limits on what a model may cost: known before it is trained, and told to the sampler as constraint
runtime   Where and how a training runs: device, precision, share of the device, and the workers beside it
settings  What a person may say about a search, as one value that is kept in the search's folder
units     Numbers as people write them on a command line: `2h30m`, `5M`, `2GB`
"""
