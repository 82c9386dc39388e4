"""Data of a task, from the source to batches on a device.

download   Downloads the files of a dataset once, and the datasets that are published by name
remote     Copies data at an address into the cache
archive    Extracts untrusted archives
tally      Counts inputs that were left out, turned, rescaled or duplicated
overview   The overview of a dataset that `automl data` prints
csv_table  Tables in CSV files with line numbers, and the labels and groups of a folder
files      Walks and lists folders, finds files that a dataset names, converts names, and hashes contents
splits     Holds out inputs by a hash of their content, or whole groups
records    The inputs of a dataset by number: splits and manifest
manifest   The list of a search's inputs with their hashes, and comparisons of two lists
arrow      Memory-mapped Arrow files of the cache
shared     Cache files in a search's storage, for all nodes, which decode large ones together
digits     The handwritten digits of scikit-learn, and scenes of overlapping ones
pictures   Recognises image files, reads one, and decodes it to a square, for every task of images
augment    Random crops and flips of whole batches of images, on the device
"""
