"""Data of a task, from the source to batches on a device.

download              Downloads the files of a dataset once, and resumes after an interruption
published             The published datasets that can be downloaded by name
archive               Extracts untrusted archives
near_layouts          Names folders that are nearly in the layout of a task
walk                  Walks the folders of a dataset, each once, without files of the operating system
tally                 Counts inputs that were left out, turned, rescaled or duplicated
items                 Lists of inputs that are not decoded yet
groups                Groups of similar inputs, each of which stays in one split
csv_table             Tables in CSV files with line numbers
files                 Files that a dataset names, and their names as text
splits                Holds out inputs by a hash of their content or group
records               The inputs of a dataset by number: splits and manifest
digest                SHA-256 of files, cached
balance               Detects imbalanced classes and suggests options
manifest              The list of a search's inputs with their hashes, and comparisons of two lists
arrow                 Memory-mapped Arrow files of the cache
shared                Cache files in a search's storage, for all nodes
digits                The handwritten digits of scikit-learn
preparation_progress  Progress of a long preparation
pictures              Pictures: formats, reading one file, decoding and augmentation, for every task of images
"""
