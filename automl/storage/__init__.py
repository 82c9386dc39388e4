"""Where a search lives: folders and object stores, their working copies, the cache, disks and logs.

folder        The folder of a search, and `search.json` in it
storage       Where searches are kept: a folder of this machine, or one in an object store, by its address
addresses     What may be shown and kept of an address: all of it but a user's name, a password and tokens
working_copy  The copy on this machine of a search that is kept in an object store, and who may write it
working_dir   Refuses storage inside of Ray's temporary working_dir
cache         The cache folder: whatever lies there under its final name is complete
disk          A disk that is full: which error says so, and in which words it is told
logs          What Ray, Optuna and MLflow log goes to a file
"""
