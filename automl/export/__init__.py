"""From a trained trial to a deployed model: which one, in which formats, checked how.

chosen        The trial of a search that is exported: the confirmed winner, or else the best one
model_card    The page that goes with an exported model: what it is, how good and how fast it is, how to use
onnx_session  An ONNX file as a function of numpy arrays, on the CPU
predict       Predictions of an exported model for images of any size
quantize      A smaller ONNX model: 8-bit weights and activations, their ranges taken from training images
run           A trained trial as files that work where this project is not installed, each checked against t
score_card    How often a deployed model is right: for each label, and which ones it takes for which
speed         How fast deployed models are on this machine
"""
