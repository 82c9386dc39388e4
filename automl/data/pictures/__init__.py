"""Pictures: formats, reading one file, decoding and augmentation, for every task of images.

formats  Recognises image files by suffix and content
picture  Reads one image file: upright, RGB, 8 bits. Decodes it to a square
augment  Random crops and flips of whole batches, on the device
"""
