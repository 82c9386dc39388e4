"""Data of a task, from the source to batches on a device.

images                Images: sources, decoding, the cache of decoded splits, augmentation, batches
sequences             Sequences of sensor readings: file formats, splits, the cache, batches
detection             Images with objects in them, in COCO's layout: checks, masks, splits, the cache
code                  Functions of source code: reading, cleaning, splits without near duplicates, sub-tokens
segmentation_data     Images with a class for each pixel: folders of images and masks, the bundled scenes, the
                      cache
stereo                Pairs of rectified images with disparities: readers, the bundled planes, splits, the
                      cache, crops
download              Downloads the files of a dataset once, and goes on after an interruption
published             The published datasets that can be downloaded by name
archive               Extracts archives that are not trusted
walk                  Walks the folders of a dataset: each once, without files of the operating system
tally                 Counts what was left out, turned, rescaled or is double
items                 Lists of inputs that are not decoded yet
groups                Groups of inputs that are alike, each of which is in one split
csv_table             Tables in CSV files, whose rows know their lines
files                 Files that a dataset names, and their names as text
splits                Which inputs are held out, by a hash of their content or group, and how a split is
                      described
records               The inputs of a dataset by number: splits, manifest, how the splits came about
digest                SHA-256 of files, cached
balance               Whether classes are imbalanced, and what to do then
manifest              The list of a search's inputs with their hashes, and differences between two lists
arrow                 Arrow files of the cache, memory-mapped
shared                Files of the cache in a search's storage, for all nodes
digits                The handwritten digits that come with scikit-learn
preparation_progress  Progress of a long preparation
"""
