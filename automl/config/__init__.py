"""Settings of a search, limits, units, and devices.

addresses        Redact users, passwords and tokens in addresses
settings         Settings of a search, stored in its `search.json`
search_options   Declare the settings of a search: types, defaults, options and text
options          Declare a field of a dataclass that is also an option
setting_checks   Check the settings of a search
baseline         The configuration of trial 0
shared_training  The settings of a training that continues a shared partial training
names            Names of searches and experiments
command_line     Text of commands and options, for messages
summary          Short text and notebook representations of results
device           Code specific to CUDA or MPS
escape           Escape names for each kind of output
keywords         Copy the signature of a class to a function
limits           Limits on the costs of a model, passed to the sampler as constraints
runtime          Device, precision and workers of a training
terminal         Escape control characters in the output of commands
user_code        Name user-defined code, and require `--trust`
units            Parse and format quantities: `2h30m`, `5M`, `2GB`
"""
