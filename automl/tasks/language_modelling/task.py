"""Language modelling: a causal decoder predicts the next token."""

import copy
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attention import Spec
from automl.base.errors import InputError, describe_error
from automl.base.serialise import to_json
from automl.base.terminal import tell
from automl.config.device import copy_ahead, find_device, is_gpu
from automl.config.runtime import Runtime
from automl.data.manifest import Manifest
from automl.task.base import EvaluationBatch, Task
from automl.task.deployment import MODEL, TOKENIZER, TRANSFORMERS, Arrays, Deployment, Run, spread_indices
from automl.task.evaluator import Evaluator
from automl.task.initial import initialise
from automl.task.task_data import SPLITS, Split
from automl.tasks.language_modelling import (
    SPEC,
    LanguageData,
    LanguageModel,
    LanguageTraining,
    hugging_face,
)
from automl.tasks.language_modelling.data import Windows, open_windows, shared_name
from automl.tasks.language_modelling.data.tokens import TextTokenizer
from automl.tasks.language_modelling.data.windows import TextWindows
from automl.tasks.language_modelling.deploy import (
    DECODING,
    EXAMPLES,
    LOGITS,
    PREFILL,
    STEP,
    TOKENS,
    decoding_difference,
    decoding_times,
    language_deployments,
    language_request,
    language_usage,
)
from automl.tasks.language_modelling.gpt import Decoder
from automl.tasks.language_modelling.model import check_decoder, find_decoder
from automl.tasks.language_modelling.score import (
    SEQUENCES,
    UNMARKED,
    LanguageEvaluator,
    check_needle,
    cross_entropy,
    divergence,
    needle_sequences,
    usable_windows,
)
from automl.tasks.language_modelling.transformers_folder import cached_times, save_transformers
from automl.tasks.language_modelling.transformers_layers import NoCounterpartError
from backbones import call, insert, sites
from backbones.example import logits
from backbones.take_over import find_exact, load_with_projections, take_over
from search.config import TrialConfig
from search.metric import Chance

AT_ONCE = 2**18  # training tokens that are copied to the device at once
COMPARED = 8  # windows that a model of transformers is compared on
MOST_TOKENS = 2**13  # of the windows that an export is checked on

Harm = list[dict[str, float]]  # of each type, by layer

WINDOWS, LEAST = 32, 4  # most and fewest windows of the validation split
WORK = {False: 1e13, True: 1e15}  # multiply-adds on a CPU and on a GPU: some minutes
TOO_LONG = 10  # times as much for the fewest windows, as of a large model where only the trials have GPUs


class LanguageModelling(Task[LanguageData, LanguageModel, LanguageTraining]):
    """Prediction of the next token.

    Its metrics are those of `LanguageEvaluator`. The inputs are windows of `context` tokens.
    """

    spec = SPEC
    noun = "windows"
    tolerance = 1e-3

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        super().__init__(config, runtime)
        self.windows = open_windows(self.data)
        self._longer = usable_windows(self.data, self.chosen, self.windows)
        check_needle(self.metric.name, self._longer)
        self.batch_size = self.shared_batch_size()
        if self.training.distil and not self.chosen.weights:
            raise InputError(
                "--distil learns from a trained model; got none. Add --weights, or take "
                "--backbone hf:FOLDER with weights"
            )

    def size(self, split: Split) -> int:
        return self.windows.size(split)

    def model(self) -> nn.Module:
        return self.placed(self.plain, lambda: self._example(2, "cpu"), to_json(self.data))

    def plain(self) -> nn.Module:
        """Build the decoder without a placement, on the CPU."""
        check_decoder(self.chosen.backbone, self.chosen.options)
        return find_decoder(self.chosen.backbone).build(
            vocabulary=self.windows.vocabulary, length=self.data.context, **self.chosen.options
        )

    def initialise(self, model: nn.Module) -> list[str]:
        """Load the weights. Mixers that replace attention take over its projections."""
        if self.chosen.weights:
            load_with_projections(model, self.original, source=self.chosen.weights)
        return []

    def notes(self) -> list[str]:
        """Return a note if mixers cannot take over the projections of the trained attention."""
        if not self.chosen.weights:
            return []
        layers = [site for site in sites(self.original, self._example(2, "cpu")) if site.replaces]
        shape = self.chosen.shape
        exact = find_exact(self.original, dict.fromkeys((site.path for site in layers), shape))
        narrow = [s.name for s in layers if s.path in exact and len(exact[s.path].q.bias) < shape.width]
        own = "plain attention" if shape.encoding == "none" else "rotary attention"
        own += f" with base {shape.base:g}" if shape.base else ""
        reasons = {
            f"the attention there computes something else than {own}: other positions, norms or scales": [
                site.name for site in layers if site.path not in exact
            ],
            "the heads there are narrower together than the model": narrow,
        }
        return [
            f"note: mixers at {', '.join(names)} of {self.chosen.backbone} start from new weights, "
            f"since {reason}"
            for reason, names in reasons.items()
            if names
        ]

    @cached_property
    def original(self) -> nn.Module:
        """The decoder without a placement, with the weights of the configuration, on the CPU."""
        with torch.random.fork_rng(devices=[]):
            model = self.plain()
        initialise(model, self.chosen, classes=0)
        return model

    @cached_property
    def _teacher(self) -> nn.Module:
        """The original on the device, whose predictions are learned."""
        return self.original.to(self.runtime.device).requires_grad_(requires_grad=False).eval()

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tokens and targets, int64 `(B, N)`. All workers draw the same order.

        Several batches are gathered and copied at once, without waiting for the device.
        """
        order = np.random.default_rng([self.config.seed, epoch]).permutation(self.size("train"))
        steps = torch.from_numpy(order[: self.steps() * self.batch_size]).view(-1, self.batch_size)
        for group in steps.split(max(1, AT_ONCE // (self.batch_size * self.data.context))):
            rows = self.runtime.shard(group.mT).mT  # (steps, rows of this worker)
            tokens, targets = self.batch("train", rows.reshape(-1))
            yield from zip(tokens.split(rows.shape[1]), targets.split(rows.shape[1]), strict=True)

    def batch(self, split: Split, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens and targets, int64 `(B, N)`, of windows by their numbers, on the device."""
        tokens, marks = map(torch.from_numpy, self.windows.batch(split, rows.numpy()))
        targets = tokens[:, 1:].masked_fill(~marks, UNMARKED)
        device = self.runtime.device
        return copy_ahead(tokens[:, :-1].contiguous(), device), copy_ahead(targets, device)

    def example(self, count: int) -> Tensor:
        return self._example(count, self.runtime.device)

    def _example(self, count: int, device: torch.device | str) -> Tensor:
        return torch.zeros(count, self.data.context, dtype=torch.int64, device=device)

    def serve(self, model: nn.Module, example: Tensor) -> Callable[[], object]:
        """Return a function that decodes one token after the context at which decoding counts."""
        length = self.data.decoding or self.data.context
        tokens = torch.zeros(1, length, dtype=torch.int64, device=example.device)
        try:
            if not isinstance(model, Decoder):
                raise InputError(f"{type(model).__name__} decodes whole texts")
            with torch.inference_mode():
                _, states = model.prefill(tokens[:, :-1], last=True)
        except InputError:
            return lambda: model(example)
        position = torch.tensor(length - 1, device=example.device)
        return lambda: model.step(tokens[:, -1:], states, position)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, targets = batch
        predicted, distil = logits(model(tokens)), self.training.distil
        loss = (1 - distil) * cross_entropy(predicted, targets)
        if distil:
            with torch.no_grad():
                taught = logits(self._teacher(tokens))
            loss = loss + distil * divergence(predicted, taught, targets)
        return loss

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        own = self.runtime.shard(torch.arange(self.size(split)))
        for index in own.split(2 * self.training.batch_size):
            tokens, targets = self.batch(split, index)
            yield EvaluationBatch(index.to(self.runtime.device), tokens, targets)

    def evaluate(
        self, model: nn.Module, split: Split, evaluator: Evaluator | None = None
    ) -> dict[str, Tensor]:
        """Compute the metrics of a split, and the recall of planted facts on test or if it is the metric."""
        metrics = super().evaluate(model, split, evaluator)
        wanted = [name for name in self._longer if split == "test" or name == self.metric.name]
        return metrics | {name: self._recalled(model, self._longer[name], split) for name in wanted}

    def _recalled(self, model: nn.Module, windows: Windows, split: Split) -> Tensor:
        """Return the share of planted facts that the model continues."""
        rows = self.runtime.shard(torch.arange(min(SEQUENCES, windows.size(split))))
        sums = torch.zeros(2, dtype=torch.float64, device=self.runtime.device)
        for part in rows.split(max(1, self.training.batch_size // 4)):
            tokens, targets = needle_sequences(self.data.source, windows, split, part.numpy())
            evaluator = LanguageEvaluator("accuracy", 0.0)
            evaluator.update(call(model, tokens.to(sums.device)), targets.to(sums.device))
            sums += torch.cat(evaluator.sums).sum(0)[[2, 0]]
        right, count = self.runtime.total(sums)
        y: Tensor = right / count
        return y

    @property
    def has_trained_layers(self) -> bool:
        return bool(self.chosen.weights)

    def measure_sensitivity(self, configs: Sequence[TrialConfig]) -> Harm:
        specs = {spec.name: spec for config in configs for spec in config.model.placement.values()}
        moved = type(self)(self.config, replace(self.runtime, device=find_device()))
        return measure_sensitivity(moved, specs)

    def evaluator(self, split: Split) -> LanguageEvaluator:
        return LanguageEvaluator(self.metric.name, self.windows.bytes_per_token(split))

    def deployments(self, model: nn.Module) -> dict[str, Deployment]:
        """Return the graphs `prefill` and `step`, or `model` if a mixer keeps no state."""
        tokenizer = self._tokenizer
        return language_deployments(
            model,
            self._deployed_windows("test", EXAMPLES),
            details=self._details(),
            files={TOKENIZER: tokenizer.content} if tokenizer is not None and tokenizer.content else {},
        )

    def graph_inputs(self, split: Split, count: int) -> dict[str, dict[str, Tensor]]:
        """Return tokens of `prefill` and `model`. `step` is checked on the example of its deployment."""
        tokens = self._deployed_windows(split, count)[:, :-1]
        return {graph: {TOKENS: tokens} for graph in (PREFILL, MODEL)}

    def compare(self, ours: Arrays, theirs: Arrays) -> float:
        """Return the largest difference of logits, and of states relative to their largest value."""
        scales = {name: max(1.0, float(np.abs(value).max())) for name, value in ours.items()} | {LOGITS: 1.0}
        return max(float(np.abs(ours[name] - theirs[name]).max()) / scales[name] for name in ours)

    def compare_together(self, model: nn.Module, runs: Mapping[str, Run]) -> Mapping[str, float]:
        """Return the difference between all steps of test windows and the model on whole windows."""
        if STEP not in runs:
            return {}
        return {DECODING: decoding_difference(model, self._deployed_windows("test", 8), runs)}

    def save_folders(self, folder: Path, model: nn.Module) -> tuple[dict[str, float], dict[str, str]]:
        """Write the folder that transformers loads, unless a layer has no counterpart there."""
        target = folder / TRANSFORMERS
        try:
            windows = self._deployed_windows("test", COMPARED)
            tell(f"writing {TRANSFORMERS} ...")
            differences = save_transformers(target, model, windows, self._tokenizer, self._published)
            if (most := max(differences.values())) <= self.tolerance:
                return differences, {}
            reason = f"its logits differ by {most:.2g}, and {self.tolerance:g} is allowed"
        except (NoCounterpartError, InputError) as error:
            reason = str(error)
        except OSError:
            raise
        except Exception as error:  # The content of the model determines the type of error.
            reason = describe_error(error)
        shutil.rmtree(target, ignore_errors=True)
        return {}, {TRANSFORMERS: reason}

    def decoding_times(self, model: nn.Module) -> Iterator[tuple[int, float, float]]:
        plain = self.plain()
        if isinstance(plain, hugging_face.HuggingFaceDecoder):
            with suppress(NoCounterpartError):
                yield from cached_times(model, plain, self.runtime)
        elif STEP in self.deployments(model) and isinstance(model, Decoder) and isinstance(plain, Decoder):
            yield from decoding_times(model, plain, self.runtime)

    def usage(self) -> str:
        return language_usage(self._details(), steps=STEP in self.deployments(self.model()))

    def request(self) -> str:
        return language_request(self._details())

    def _details(self) -> dict[str, Any]:
        """Return what `automl.export.served_decoder` needs to know of tokens."""
        tokenizer = self._tokenizer
        return {
            "tokens": "symbols" if tokenizer is None else "sub-words" if tokenizer.content else "bytes",
            "vocabulary": self.windows.vocabulary,
            "end": None if tokenizer is None else tokenizer.end,
            "context": self.data.context,
        }

    @property
    def _tokenizer(self) -> TextTokenizer | None:
        return self.windows.tokenizer if isinstance(self.windows, TextWindows) else None

    @property
    def _published(self) -> str | None:
        """Return the folder or name of the published model whose tokenizer is used."""
        name, prefix = self.chosen.backbone, hugging_face.PREFIX
        return name.removeprefix(prefix) if self.data.tokenizer and name.startswith(prefix) else None

    def _deployed_windows(self, split: Split, count: int) -> Tensor:
        """Return up to `count` windows spread over a split, int64 `(N, context + 1)`."""
        # There are at most MOST_TOKENS tokens in more than two windows, since logits and states take memory.
        fitting = max(2, min(count, MOST_TOKENS // self.data.context))
        rows = spread_indices(self.size(split), fitting).numpy()
        return torch.from_numpy(self.windows.batch(split, rows)[0])

    def chance(self, split: Split) -> Chance | None:
        """Return the accuracy of answering with any value of a sequence of recall that is still open."""
        if self.data.source != "recall" or self.metric.name != "accuracy":
            return None
        answers = self.data.pairs * self.size(split)
        p = 1 / np.arange(1, self.data.pairs + 1)
        error = float((p * (1 - p)).mean() / answers) ** 0.5
        return Chance(value=float(p.mean()), error=error, step=1 / answers)

    @classmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        return open_windows(cls.data_of(config)).manifest()

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str | None:
        return shared_name(cls.data_of(config))

    def stored_files(self, splits: Sequence[Split]) -> Mapping[str, Path]:
        assert isinstance(self.windows, TextWindows), "sequences of recall are drawn"
        return dict.fromkeys(SPLITS, self.windows.file.path)

    def describe_changes(self) -> str:
        return str(self.windows.tally)

    def describe_splits(self) -> dict[str, str]:
        return self.windows.describe_splits()


def measure_sensitivity(task: LanguageModelling, specs: Mapping[str, Spec]) -> Harm:
    """Return the harm of each type at each layer: the loss with it there, minus that of the original.

    A mixer takes over the projections of the layer that it replaces. Nothing is trained. The result is empty
    if this takes too long on this machine.

    Args:
        task: The task, whose decoder has trained weights.
        specs: The mixers to choose from by name.
    """
    original, example = task.original, torch.zeros(2, task.data.context, dtype=torch.int64)
    known = sites(original, example)
    layers = [site for site in known if site.replaces]
    work = sum(p.numel() for p in original.parameters()) * task.data.context * len(specs) * len(layers)
    allowed = WORK[is_gpu(task.runtime.device)]
    if work * LEAST > TOO_LONG * allowed:
        tell("the sensitivity of so many layers takes too long on this machine: left out")
        return []
    windows = max(LEAST, min(WINDOWS, int(allowed // max(1, work))))
    model = copy.deepcopy(original)
    before = score(task, model, windows)["loss"]
    harm: Harm = [{} for _ in layers]
    for name, spec in specs.items():
        replaced = insert(copy.deepcopy(original), {site.name: spec for site in layers}, example, known=known)
        take_over(replaced, original)
        for site, by_type in zip(layers, harm, strict=True):
            own = model.get_submodule(site.path)
            model.set_submodule(site.path, replaced.get_submodule(site.path))
            by_type[name] = score(task, model, windows)["loss"] - before
            model.set_submodule(site.path, own)
    return harm


def score(task: LanguageModelling, model: nn.Module, windows: int) -> dict[str, float]:
    """Return the metrics of up to `windows` windows that are spread over the validation split."""
    windows = min(windows, task.size("validation"))
    rows = torch.arange(windows) * task.size("validation") // windows
    evaluator, model = task.evaluator("validation"), model.to(task.runtime.device).eval()
    with torch.inference_mode():  # in float32, since differences between layers are small
        for index in rows.split(task.training.batch_size):
            tokens, targets = task.batch("validation", index)
            evaluator.update(model(tokens), targets)
    return {name: value.item() for name, value in evaluator.compute(task.runtime).items()}
