"""Where a search lives: folders and object stores, their working copies, the cache, disks and logs.

folder          The folder of a search, and its `search.json`
storage         Where searches are stored: a local folder, or one in an object store, by its address
addresses       Redacts users, passwords and tokens in addresses
epoch_progress  How far a trial is within an epoch that takes long
working_copy    The local copy of a search that is stored in an object store, and its single writer
working_dir     Refuses storage inside of Ray's temporary working_dir
answers         What a model answered to each input of a split
cache_folder    The cache folder: a file under its final name is complete
trusted         Remembers which files of user-defined code were run here by name
disk            Detects a full disk and formats `disk full at ...`, for the errors that callers raise
logs            Sends the logs of Ray, Optuna and MLflow to a file
"""
