"""Export of trained models, and predictions with exported ones.

run_export      Export a trained trial as files that work without this project
export_result   The result of an export, the lines that its command prints, and its model card
chosen          Choose the trial to export: the confirmed winner, or else the best one
destination     The folder of an export
formats         Write the formats of an exported model, and run its ONNX files
served_model    The code of `mlflow-model`, which does not need this project
served_decoder  Continues texts, also as the code of `mlflow-model` for language models
checks          Parity with the trained model, scores of a split, and speed on this machine
check_attention  Check the contract of an attention type at the sites of a model, and its formats
predict         Predictions of an exported model for files
"""
