"""Names of tags by which runs are looked up. The tags `state`, `role` and `reason` are only for display."""

# MLflow's own: the description that it shows, the command and the commit of the code.
NOTE, SOURCE, COMMIT = "mlflow.note.content", "mlflow.source.name", "mlflow.source.git.commit"
SOURCE_TYPE, DATA_CONTEXT = "mlflow.source.type", "mlflow.data.context"
PARENT = "mlflow.parentRunId"
# Of an experiment: a state of the table of runs, which a link names by what follows the dot.
VIEW = "mlflow.sharedViewState."
# Of every run: the version of this package, and of a study's runs what it trains and how its source differs.
VERSION, SCALE = "automl.version", "automl.scale"
SEARCH, IDENTITY, TRIAL = "automl.search", "automl.identity", "automl.trial"
BEST, CHECKPOINT = "automl.best_run", "automl.checkpoint"
# Of a confirmation's run: the search. Of a search's: the confirmed winner's run, the verdict's headline
# and its line of figures.
CONFIRMS, CONFIRMED = "automl.confirms", "automl.confirmed_run"
VERDICT, FIGURES = "automl.verdict", "automl.figures"
