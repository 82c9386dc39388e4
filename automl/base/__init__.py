"""The ground floor: what every package uses, and what imports none of them.

errors        `InputError`, for mistakes of the user
loading       Loads user-defined objects, and sends their code to other machines
own_imports   The imports of a user's files, and the finder of modules beside them
live_objects  Functions of a notebook or a script
lazy          Imports on first use: of exports, the built-in tasks, and packages that only one task needs
serialise     Convert dataclasses to JSON and back
atomic        Files that are being written: temporary names, leftovers of a crash, a full disk
process       This process: its cores, and for a block handlers of signals and the logs of libraries
text          Text of users: the encoding of files, and the names of searches and experiments
units         Parse and format quantities: `2h30m`, `5M`, `2GB`
escape        Escape names for each kind of output, and redact tokens in addresses
terminal      Output on a terminal: control characters are escaped, progress, and results in a few lines
options       Options: fields of a dataclass give the command line, the API and the pages; their names
"""
