"""Storage of searches: folders, object stores, working copies, the cache, disks and logs.

folder          The folder of a search, and its `search.json`
provenance      The command line, machine, git commit and package versions of a search
storage         A folder, local or in an object store, by its address
epoch_progress  Progress of a trial within a long epoch
working_copy    The local copy of a search in an object store, and its single writer
working_dir     Reject storage inside Ray's temporary working_dir
answers         Predictions of a model for each input of a split
cache_folder    The cache folder: a file under its final name is complete
trusted         Remember the files of user-defined code that were run on this machine
disk            Detect a full disk, and format messages about it
logs            Redirect the logs of Ray, Optuna and MLflow to a file
metadata        The description of a search, `search.json`: its settings and its provenance
"""
