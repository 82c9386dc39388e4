"""The shared partial training that trainings share whose placement goes in later: a plain training, kept as
it is by then.

A configuration with `training.insert_at` is trained without attention for so many epochs, and all placements
with the same seed and hyperparameters share these. The plain training leaves its state behind when it comes
to that epoch; a placement's training goes on from there, or trains the shared partial training where nothing
is left there.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

from attention import InputError
from automl.config.device import restore_generator_states
from automl.storage.storage import Storage
from automl.tasks import Task, open_task
from automl.training import checkpoint
from automl.training.continuation import continue_training
from automl.training.loop import TrainingState, fit, start
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, Metrics

log = logging.getLogger("automl")


def plain(config: TrialConfig) -> TrialConfig:
    """The training that `config` goes on from."""
    return config.change(model={"placement": {}}, training={"perturb": 0.0})


def place(shared_trainings: Storage, config: TrialConfig) -> Storage:
    """The folder of the shared partial training that `config` goes on from, or is."""
    text = json.dumps(plain(config).to_json(), sort_keys=True)
    return shared_trainings / f"{config.seed}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def begin(task: Task, shared_trainings: Storage) -> TrainingState:
    """A new training of the task, with its shared partial training behind it where its placement goes in
    later.

    shared partial trainings: where these are kept. Raises InputError for a shared partial training that is
    damaged, or another training's.
    """
    config = task.config
    at = config.training.insert_at
    if not at or plain(config) == config:
        return start(task)
    make = partial(continue_training, task, perturb=config.training.perturb, seed=config.seed)
    there = place(shared_trainings, config)
    stem_task = open_task(plain(config), task.runtime)
    # Workers of a trial train a shared partial training together, or not at all.
    if all(task.runtime.gather(there.exists(CHECKPOINT_FILE))):
        content = _read(there, stem_task)
        stem = start(stem_task, stem_task.model())
        checkpoint.restore(stem, content)
        state = make(stem)
        restore_generator_states(content["generators"])
        return state
    log.warning("there is no shared partial training %s; it is trained", there)
    stem = start(stem_task)
    history = list(islice(fit(stem_task, stem), at))
    if task.runtime.rank == 0:
        checkpoint.save(there, stem_task.config, stem, history)
    return make(stem)


def leave(task: Task, state: TrainingState, shared_trainings: Storage, history: Sequence[Metrics]) -> None:
    """Keep a plain training's state where placements go in, if it is there."""
    config = task.config
    if plain(config) != config or not config.training.insert_at or state.epoch != config.training.insert_at:
        return
    checkpoint.save(place(shared_trainings, config), config, state, history)


def _read(there: Storage, task: Task) -> dict[str, Any]:
    advice = "delete it, and it is trained again"
    try:
        content = checkpoint.read(there, task.runtime.device)
    except InputError as error:
        raise InputError(f"the shared partial training cannot be read; {advice}: {error}") from error
    found, wanted = TrialConfig.from_json(content["config"]), task.config
    if found != wanted or content["epoch"] != wanted.training.insert_at:
        other = [key for key in ("data", "model", "training") if getattr(found, key) != getattr(wanted, key)]
        what = " and ".join(other) or "epoch"
        raise InputError(
            f"the shared partial training {there} is of another training, with another {what}; {advice}"
        )
    return content
