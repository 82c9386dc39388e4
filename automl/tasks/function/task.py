"""A training function as a task: its model and its example, for measuring, checks and export."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from torch import Tensor, nn

from automl.base import live_objects
from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.data.manifest import Manifest
from automl.task.base import Batch, EvaluationBatch, Inputs, Task, remember_sites
from automl.task.deployment import MODEL, Arrays, Deployment
from automl.task.evaluator import Evaluator
from automl.task.task_data import Split
from automl.tasks.function import SPEC, FunctionModel
from automl.tasks.function.models import Exported, Placed, add_noise, deploy, name_inputs, repeat
from automl.tasks.function.space import Start, StartTrial, run_start
from backbones import insert
from backbones.example import materialise, sum_outputs
from backbones.torch_internals import tree_leaves
from search.config import Data, TrialConfig
from search.config.sections import OwnTraining
from search.metric import Chance, Metric

_shapes: dict[str, Any] = {}  # shapes of the parameters by the hyperparameters that a start depends on

NOMINAL = 2048  # inputs of an epoch, since only the function knows their number
TEST = "test_"  # prefix of test metrics in a history
REBUILD = "rebuild.py"
REBUILDING = '''"""The trained model of this folder, as `model`. Needs attention-automl, and runs code/."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from automl.base import loading
from automl.config.runtime import Runtime
from automl.task import open_task
from search.config import TrialConfig

FILES = {files}  # by their paths in config.json

folder = Path(__file__).parent
loading.receive({{path: (folder / file).read_bytes() for path, file in FILES.items()}})
config = TrialConfig.from_json(json.loads((folder / "config.json").read_text())["config"])
model = open_task(config, Runtime(device=torch.device("cpu"))).checkpoint_model()
model.load_state_dict(load_file(folder / "model.safetensors"))
model.eval()
'''


class FunctionTask(Task[Data, FunctionModel, OwnTraining]):
    """The model of a training function. The function itself has the data, the loss and the loop."""

    spec = SPEC

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        # The function chooses the precision of its loop. It is measured in float32.
        super().__init__(config, replace(runtime, precision="fp32"))
        self.batch_size = config.training.batch_size

    @classmethod
    def metric_of(cls, config: TrialConfig) -> Metric:
        assert isinstance(config.training, OwnTraining), "its spec has this type"
        return config.training.reports

    def _start(self) -> Start:
        """Run the start of the function with the configuration's hyperparameters and placement."""
        if changed := self.chosen.changed():
            raise InputError(f"{changed}; restore it, or start a new search")
        source = optuna.trial.FixedTrial(dict(self.training.parameters))
        insert = partial(insert_placement, self.config)
        trial = StartTrial(source, insert, seed=self.config.seed, data=self.data.path)
        return run_start(self.chosen.backbone, trial)

    @cached_property
    def _example(self) -> Inputs:
        return self._start().placed.example

    def model(self) -> nn.Module:
        start = self._start()
        self.__dict__.setdefault("_example", start.placed.example)
        return start.placed.model.to(self.runtime.device)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the example as a batch, as often as an epoch has steps."""
        batch = self.example(self.batch_size)
        for _ in range(self.steps()):
            yield batch

    def example(self, count: int) -> Inputs:
        return repeat(self._example, count, self.runtime.device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the outputs. Its gradients take as long as those of a loss."""
        return sum_outputs(model, batch)

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        raise self._has_own_data()

    def evaluator(self, split: Split) -> Evaluator:
        raise self._has_own_data()

    def _has_own_data(self) -> InputError:
        return InputError(
            f"training function {self.chosen.backbone!r} has its validation and test data itself"
        )

    def size(self, split: Split) -> int:
        """Return a nominal number of training inputs, and 0 for the other splits."""
        return NOMINAL if split == "train" else 0

    def steps(self) -> int:
        return max(1, round(NOMINAL / self.batch_size))

    def chance(self, split: Split) -> Chance | None:
        """Return the score of guessing that the user has named, or None."""
        value = self.training.chance
        return None if value is None else Chance(value=value, error=0.0, step=0.0)

    @classmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        """Return an empty manifest, since only the function knows its data."""
        return Manifest.from_splits({"train": []})

    def notes(self) -> Sequence[str]:
        """Check what `trial.export` declares, so that the export after the search does not fail on it."""
        self.deployments(self.checkpoint_model())
        return ()

    # Export

    @cached_property
    def _exported(self) -> Exported | None:
        return self._start().exported

    def checkpoint_model(self) -> nn.Module:
        """Return a new model of those that the function exports, or else the placed one, on the device."""
        start = self._start()
        return (start.exported or start.placed).model.to(self.runtime.device)

    def test_metrics(self, model: nn.Module, history: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the test metrics that the function reported. Only a confirmation asks for them."""
        last = history[-1] if history else {}
        return {name.removeprefix(TEST): value for name, value in last.items() if name.startswith(TEST)}

    def deployments(self, model: nn.Module) -> dict[str, Deployment]:
        if self._exported is None:
            return {}
        return {MODEL: deploy(model, self._exported, self.model_inputs("test", 2))}

    def graph_inputs(self, split: Split, count: int) -> dict[str, dict[str, Tensor]]:
        return {} if self._exported is None else super().graph_inputs(split, count)

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        """Return the example of `trial.export`, repeated with noise, as only the function has real inputs."""
        assert self._exported is not None
        repeated = repeat(self._exported.example, count, self.runtime.device)
        return name_inputs(self._exported.model, add_noise(repeated))

    def rebuilding_files(self) -> Mapping[str, bytes]:
        """Return the function's files, and lines of Python that run its start."""
        files = self.config.code()
        if live := next(filter(live_objects.is_live, files), None):
            raise InputError(
                f"{live!r} is in no file, so its model cannot be built elsewhere; declare it with "
                f"trial.export"
            )
        top = os.path.commonpath([Path(path).parent for path in files]) if files else ""
        names = {path: f"code/{Path(path).relative_to(top).as_posix()}" for path in files}
        return {REBUILD: REBUILDING.format(files=names).encode()} | {
            names[path]: content for path, content in files.items()
        }

    def compare(self, ours: Arrays, theirs: Arrays) -> float:
        """Return the largest difference. It is relative to the largest output if that is above 1."""
        return max(
            float(np.abs(ours[name] - theirs[name]).max() / max(1.0, np.abs(ours[name]).max()))
            for name in ours
        )

    @classmethod
    def describe(cls, exported: Mapping[str, Any], outputs: Arrays) -> tuple[str, dict[str, Any]]:
        """Describe the outputs. Values that are no probabilities are scores."""
        labels, first = exported["labels"], next(iter(outputs.values()))
        if not labels or first.ndim > 1:
            return super().describe({**exported, "labels": ()}, outputs)
        if (first >= 0).all() and abs(first.sum() - 1) < 1e-3:
            return super().describe(exported, outputs)
        best = int(first.argmax())
        values = {"label": labels[best], "scores": dict(zip(labels, first.tolist(), strict=True))}
        return f"{labels[best]} (score {first[best]:.4g})", values

    def describe_data(self) -> str:
        return f"{Path(self.chosen.backbone).name} trains on its own data, and reports {self.metric.name}"


def insert_placement(config: TrialConfig, placed: Placed) -> Placed:
    """Insert a configuration's placement into a model. The sites are searched once in a process."""
    # Also without modules, so that all variants draw equal weights.
    materialise(placed.model, placed.example)
    shapes = [[name, list(value.shape)] for name, value in placed.model.named_parameters()]
    inputs = [list(leaf.shape) for leaf in tree_leaves(placed.example) if isinstance(leaf, Tensor)]
    # A start depends on no other hyperparameters than these.
    chosen = {n: v for n, v in config.training.hyperparameters().items() if not isinstance(v, float)}
    key = json.dumps([config.model.backbone, config.model.code, config.data.path, chosen], sort_keys=True)
    if _shapes.setdefault(key, shapes) != shapes:
        raise InputError(
            f"the model of training function {config.model.backbone!r} depends on a continuous "
            f"hyperparameter, and costs are measured once for all its values; use suggest_int or "
            f"suggest_categorical for it"
        )
    if not config.model.placement:
        return placed
    known = remember_sites(
        ["function", config.model.backbone, config.data.path, chosen, shapes, inputs],
        lambda: placed.model,
        lambda: placed.example,
    )
    return replace(placed, model=insert(placed.model, config.model.placement, placed.example, known=known))
