"""LARNN: an LSTM whose cell attends to its own latest states.

backbone  The stack of layers, with the source and the departures from it
layer     One layer with its batch norms, over all steps or one step at a time
loop      The loop over time of a layer, as its equations are written, and as one operation for export
"""
