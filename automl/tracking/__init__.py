"""MLflow: one experiment a space, a parent run a search, a child run a trial. Written by the driver alone.

tracker   A callback that mirrors trials as MLflow runs, without blocking training
process   Run the writer in a separate process
writer    Write runs, metrics and artifacts to MLflow
runs      Read runs from MLflow, and register models
run_spec  What is tracked: experiment, names, tags and parameters; runs that a training function starts
client    The connection to MLflow

No other package imports MLflow's tracking. Runs are stored where MLflow itself would store them: at
MLFLOW_TRACKING_URI, or in `mlflow.db` in the current folder, which `mlflow ui` there shows.
"""
