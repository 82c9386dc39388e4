"""The published searches for the hyperparameters of a LARNN (arXiv 1808.05578)."""

from automl.tasks.published_study import read_studies

STUDIES = read_studies(__file__)
