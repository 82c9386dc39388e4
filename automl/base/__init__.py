"""The ground floor: what every package uses, and what imports none of them.

errors           `InputError`, for mistakes of the user
loading          Loads user-defined objects, and sends their code to other machines
live_objects     Functions of a notebook or a script
child_processes  User-defined classes in the processes that user-defined code starts
lazy             Exports that are loaded on first use
extras           Packages that only one task needs, imported on first use
serialise        Convert dataclasses to JSON and back
atomic           Temporary names of files that are being written, and their removal after a crash
units            Parse and format quantities: `2h30m`, `5M`, `2GB`
names            Names of searches and experiments
escape           Escape names for each kind of output
addresses        Redact users, passwords and tokens in addresses
command_line     Text of commands and options, for messages
terminal         Escape control characters in the output of commands
summary          Short text and notebook representations of results
options          Declare options: fields of a dataclass give the command line, the API and the pages
"""
