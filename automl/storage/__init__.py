"""Storage of searches: folders, object stores, working copies, the cache and logs.

folder        The folder of a search, and its `search.json`
storage       A folder, local or in an object store, by its address
trial_files   Files beside a checkpoint: predictions for a split, and progress within a long epoch
user_code     Name user-defined code, require `--trust`, and remember the files that were run
working_copy  The local copy of a search in an object store, and its single writer
contents      Digests of files and the times of their last changes, which show whether a path is as it was
cache_folder  The cache folder: a file under its final name is complete
git           Run git: read the user's repository, and copy a commit of it into a folder
remove        Delete a search with its checkpoints, and files that nothing has used for long
metadata      The description of a search, `search.json`: its settings and its provenance
"""
