"""The published searches for the hyperparameters of a LARNN (arXiv 1808.05578)."""

from collections.abc import Sequence

from automl.tasks.published_study import Study

STUDIES: Sequence[Study] = (
    Study(
        name="larnn-rounds",
        summary="both searches for the hyperparameters of a LARNN on UCI HAR",
        source="G. Chevalier, LARNN, arXiv 1808.05578, README and results of both rounds",
        columns={"accuracy": "accuracy, %"},
        setup={
            "model": "larnn",
            "data": "ucihar",
            "inputs": "7,352 sequences",
            "epochs": "25",
            "scored": "the test split, which also chose its best trial",
        },
        rows=[],
        run="automl.tasks.sequence_classification.rounds:run",
        notes=[
            "The published accuracy is of the test split, ours of the validation split: they do not "
            "compare. automl confirm scores the test split. Every trial has all its epochs, as there."
        ],
        settings={"pruning": False, "baseline_share": 0.0},
        small={"epochs": 2, "concurrent": 1},
    ),
)
