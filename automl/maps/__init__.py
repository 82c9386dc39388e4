"""Pictures of what an inserted module attends to.

heat       Colours of weights, and weights at the resolution of an input
pictures   An image, signals or tokens with the weights of a map
"""
