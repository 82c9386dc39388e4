"""Pictures of inputs: what an inserted module attends to, and what two models answer differently.

pictures  An image, signals or tokens with the weights of a map
kept      Inputs kept for the report: six with a map, and those that two models answer differently
"""
