"""Pictures: formats, reading one file, decoding and augmentation, for every task of images.

formats  Recognises image files by suffix and content
picture  Reads one image file: upright, RGB, 8 bits
decode   Decodes one image to a square of RGB pixels
augment  Random crops and flips of whole batches, on the device
"""
