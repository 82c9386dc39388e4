"""Declare the options of `study`, in a module that imports nothing slow."""

from dataclasses import dataclass, field

from automl.base.options import STORAGE, option, required
from automl.config.search_options import RuntimeOptions, SearchOptions


@dataclass(frozen=True, kw_only=True)
class StudyOptions(RuntimeOptions, SearchOptions):
    """Arguments of `run_study`, which are settings of its searches, and options of `automl study`.

    Attributes:
        name: Name of the study; see automl studies.
        small: Run a small version in minutes, on bundled data or --data.
        seeds: Number of trainings of each cell, all with the same seeds.
        data: Folder or archive of the data.
        storage: Folder of all searches, or its address. Its searches have the name of the study.
        epochs: Epochs of each training.
        seed: First seed.
        max_memory: Maximum memory of a training step, such as 11GB.
    """

    name: str = field(kw_only=False, metadata=required(argument=True))
    small: bool = option(False, None, "--small")
    seeds: int = option(1)
    data: str | None = option(None, shown="the study's")
    storage: str = option(STORAGE, None, "--out")
    epochs: int | None = option(None, shown="as published")
    subset: float = option(1.0)
    seed: int = option(0)
    max_memory: str | None = option(None, shown=False)
    concurrent: int | None = option(None, shown="as many as fit")
    cpus_per_trial: float = option(1)
    gpus_per_trial: float | None = option(None, shown="auto", kind=str | None)
    workers_per_trial: int = option(1)
