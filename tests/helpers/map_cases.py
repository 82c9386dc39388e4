"""Map examples for the tests of the report."""

from pathlib import Path

import numpy as np
from optuna.study import StudyDirection

from automl.judge.protocol import study_name
from automl.maps import MapExamples
from automl.report.read import read_folder
from search.study import VARIANT, create_study, read_records
from tests.helpers.report_cases import SSA, frozen, plan_of

TEXT = "def read rows ( path ) : with open ( path ) as file : return [ line . strip ( ) for line in file ]"
CODE = 4 * TEXT.split()


def map_examples(kind: str = "images") -> MapExamples:
    """Return six made-up inputs of a kind: images, signals, code or channels."""
    random = np.random.default_rng(0)
    heats = [random.random((5, 5)) ** 3 for _ in range(6)]
    inputs = [random.integers(0, 256, (48, 48, 3)).astype(np.uint8) for _ in range(6)]
    if kind == "signals":
        inputs = [np.cumsum(random.normal(size=(3, 60 + 20 * i)), axis=1) for i in range(6)]
        heats = [random.random(15 + 5 * i) for i in range(6)]
    if kind == "code":
        inputs = [CODE[: 40 + 10 * i] for i in range(6)]
        heats = [random.random(len(tokens)) for tokens in inputs]
    if kind == "channels":
        heats = [random.random(64) for _ in range(6)]
    return MapExamples(
        spec="decomposed(normalisation=softmax,heads=1,key_channels=128,value_channels=128)",
        site="stage1.block2.branch",
        kind={"channels": "rescaling", "code": "positions", "signals": "positions"}.get(kind, "channels"),
        of_channels=kind == "channels",
        gate=None if kind == "code" else 0.31,
        names=["<b>cats</b>", "dogs", "birds", "cats of a breed with a long name", "dogs", "birds"],
        inputs=inputs,
        heats=[heat.astype(np.float16) for heat in heats],
    )


def leave_maps(folder: Path, kind: str, confirmation: int = 1) -> None:
    """Write the study of a confirmation with one training of SSA, and the maps of that training."""
    search = read_folder(folder)
    confirmed = folder / ("confirm" if confirmation == 1 else f"confirm-{confirmation}")
    name = study_name(confirmed, search.metadata.name)
    study = create_study(confirmed, name=name, direction=StudyDirection.MAXIMIZE)
    record = search.done[0]
    trial = frozen({}, {}, record.config.change(seed=1000), plan_of(), record.state, record.history)
    trial.set_user_attr(VARIANT, SSA)
    study.add_trial(trial)
    for training in read_records(confirmed, name):
        map_examples(kind).save(search.metadata.location / confirmed.name / training.folder)
