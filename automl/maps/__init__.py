"""Pictures of inputs: what an inserted module attends to, and what two models answer differently.

pictures   An image, signals or tokens with the weights of a map
examples   Six inputs with the map of a model's strongest module, kept for the report
differing  Inputs that two models answer differently, kept for the report
"""
