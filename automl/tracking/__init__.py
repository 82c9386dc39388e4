"""MLflow: one experiment a space, a parent run a search, a child run a trial. Written by the driver alone.

Nothing else of ours imports MLflow's tracking. Runs go where MLflow itself would put them: to
MLFLOW_TRACKING_URI, or to `mlflow.db` in the current folder, which `mlflow ui` there shows.
"""
