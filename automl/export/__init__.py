"""From a trained trial to a deployed model: which one, in which formats, checked how.

run           A trained trial as files that work where this project is not installed
chosen        The trial of a search that is exported: the confirmed winner, or else the best one
destination   Where an export goes: a new folder or an earlier export's, on a disk or in an object store
formats       The formats of an exported model, each written to its file in one folder
parity        Whether each exported form, read back from its file, answers as the trained model does
onnx_session  An ONNX file as a function of numpy arrays, on the CPU
quantize      A smaller ONNX model: 8-bit weights and activations, their ranges taken from training inputs
score_card    How often a deployed model is right: for each label, and which ones it takes for which
speed         How fast deployed models are on this machine
model_card    The page that goes with an exported model: what it is, how good, how fast, and how to use it
predict       Predictions of an exported model for files
"""
