"""Data of a task, from their source to batches on a device.

images     Images: sources, decoding, the cache of decoded splits, augmentation, batches
sequences  Sequences of sensor readings: file formats, splits, the cache, batches
download   Fetching an archive once
archive    What is in an archive, read with care
items      Lists of inputs with their labels
splits     Which input is in which split, by its content
digest     Digests of files
manifest   The list of a search's data, and how it differs from another
arrow      Files of the cache, mapped into memory
shared     Files of the cache in a search's storage
progress   How far a long preparation is
"""
