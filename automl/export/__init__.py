"""From a trained trial to a deployed model: its choice, its formats, their checks.

run_export      Exports a trained trial as files that work without this project
chosen          Chooses the trial to export: the confirmed winner, or else the best one
destination     The folder of an export: a new one or an earlier export's, on disk or in an object store
formats         Writes the formats of an exported model
onnx_program    What the ONNX exporter cannot translate, as operations that it can
served_model    What `mlflow-model` runs, without this project
served_encoder  The same of encoders that take texts
parity          Compares each exported form, read back from its file, with the trained model
onnx_session    An ONNX file as a function of numpy arrays, on the CPU
quantize        A smaller ONNX model: 8-bit weights and activations, their ranges taken from training inputs
export_scores   What deployed models answer to a whole split
speed           Latency and throughput of deployed models on this machine
model_card      The model card
predict         Predictions of an exported model for files
code_search     What an exported code search finds in a folder of code
code_index      The vectors of all functions of a folder, in a file that is brought up to date
text_encoder    An exported encoder as a function from texts to vectors
"""
