"""Record tables of single modules on digits, on sensors and on look-ups: `data/singles.parquet`.

The placements of each table are the plain model and single modules of five types at each site, on look-ups
of the control, too. The models are a quarter-width xresnet18 for scikit-learn's digits, with the sites of
`nette.py`, a quarter-width 1-D ResNet for a part of UCI HAR, and the model of the space `lookup` with its
baseline's hyperparameters. Each is trained from new weights with `SEEDS` by the product's own loop.

    python benchmarks/record_singles.py --hours 1

A row is one training: its table, placement and seed, and its loss and accuracy on the validation split. The
whole takes about half an hour on two cores. The windows of UCI HAR must be in the folder
AUTOML_TEST_DATA or in ../shared/data.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nette
import recorder
import torch

from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.tasks.image_classification.space import LOOKUP, list_lookup_sites
from automl.tasks.sequence_classification import SequenceData
from automl.tasks.sequence_classification.space import TASK
from automl.training.loop import fit, start
from search.config import Model, TrialConfig
from search.config.sections import ClassificationTraining

FILE = Path(__file__).parent / "data" / "singles.parquet"
SITES: Mapping[str, tuple[str, ...]] = {
    "digits": nette.SITES,
    "sensors": ("stage1.block2", "stage2.block1", "stage2.block2", "stage3.block1", "stage3.block2"),
    "lookup": tuple(site.name for site in list_lookup_sites()),
}
SEEDS = 6
WIDTH = 0.25
KEYS = ("table", "placement", "seed")


def names(table: str) -> list[str]:
    controls = [f"conv1x1@{site}" for site in SITES[table]] if table == "lookup" else []
    return ["plain", *nette.singles(SITES[table]), *controls]


def config(table: str, name: str, seed: int) -> TrialConfig:
    placement = nette.Work(name, seed, 0).placement
    if table == "lookup":
        return LOOKUP.change(model={"placement": placement}, seed=seed)
    if table == "digits":
        return TrialConfig(
            data=ImageData(source="digits", size=32),
            model=Model(backbone="xresnet18", options={"width": WIDTH}, placement=placement),
            training=ImageTraining(epochs=4, batch_size=32, learning_rate=3e-3, schedule="flat-cosine"),
            seed=seed,
        )
    return TrialConfig(
        task=TASK,
        data=SequenceData(source="series", path=str(nette.DATA / "sequences" / "ucihar_part.npz")),
        model=Model(backbone="resnet1d", options={"width": WIDTH}, placement=placement),
        training=ClassificationTraining(epochs=6, batch_size=64, learning_rate=3e-3),
        seed=seed,
    )


def train(work: tuple[str, str, int]) -> dict[str, Any]:
    """Train and return the row."""
    torch.set_num_threads(1)
    task = open_task(config(*work), Runtime(device=torch.device("cpu"), precision="fp32"))
    *_, result = fit(task, start(task))
    return dict(zip(KEYS, work, strict=True)) | {"accuracy": result["accuracy"], "loss": result["loss"]}


def read() -> list[dict[str, Any]]:
    """Return the rows so far."""
    return recorder.read(FILE)


if __name__ == "__main__":
    work = [(table, name, seed) for seed in range(SEEDS) for table in SITES for name in names(table)]
    recorder.record(__doc__, FILE, work, train, KEYS)
