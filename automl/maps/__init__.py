"""Pictures of what an inserted module attends to.

pictures  An image, signals or tokens with the weights of a map
examples  Six inputs with the map of a model's strongest module, kept for the report
"""
