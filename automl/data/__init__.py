"""Data of a task, from the source to batches on a device.

images                Images: sources, decoding, the cache of decoded splits, augmentation, batches
sequences             Sequences of sensor readings: file formats, splits, the cache, batches
detection             Images with objects, in COCO's layout: checks, masks, splits, the cache
code                  Functions of source code: reading, cleaning, splits without near duplicates, sub-tokens
text                  Text for language models, and sequences of associative recall
segmentation_data     Images with a class for each pixel: folders, the bundled scenes, the cache
stereo                Pairs of rectified images with disparities: readers, bundled planes, splits, the cache
download              Downloads the files of a dataset once, and resumes after an interruption
published             The published datasets that can be downloaded by name
archive               Extracts untrusted archives
near_layouts          Names folders that are nearly in the layout of a task
tally                 Counts inputs that were left out, turned, rescaled or duplicated
csv_table             Tables in CSV files with line numbers, and the labels and groups of a folder
files                 Walks folders, finds files that a dataset names, and converts their names
splits                Holds out inputs by a hash of their content, or whole groups
records               The inputs of a dataset by number: splits and manifest
digest                SHA-256 of files, cached
manifest              The list of a search's inputs with their hashes, and comparisons of two lists
arrow                 Memory-mapped Arrow files of the cache
shared                Cache files in a search's storage, for all nodes
digits                The handwritten digits of scikit-learn
"""
