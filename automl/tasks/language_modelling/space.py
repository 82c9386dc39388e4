"""Spaces of hybrid decoders: the mixer of each layer, such as full attention, a sliding window or linear.

A layer without an entry in the placement keeps the decoder's own mixer, full attention. A model whose layers
are all of one kind is a baseline. `--full` fixes how many layers are full.

Sources of uniform interleavings: one full layer in two (Gemma 2, arXiv 2408.00118), in four (Kimi Linear,
arXiv 2510.26692) and in six (Gemma 3, arXiv 2503.19786).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna

from attention.attention_table import ATTENTIONS
from attention.options import OptionValue
from attention.spec import Spec
from automl.base import loading
from automl.base.errors import InputError
from automl.tasks.language_modelling import FULL, LanguageData, LanguageModel, LanguageTraining, site_name
from search import choices
from search.config import PUBLISHED, TrialConfig
from search.space import Space

TASK = "language-modelling"
KINDS = ("sliding", "linear", "decomposed", "shortconv")  # by default; another one would change old searches
PERIODS = (2, 4, 6)  # of uniform interleavings: one layer in so many is full
FINE_TUNING = (3e-5, 1e-3)  # learning rates of a decoder with trained weights
FINE_TUNING_RATE = 2e-4


def mixer(
    kind: str,
    *,
    heads: int,
    window: int,
    encoding: str = "rotary",
    base: float | None = None,
    norm: str = "none",
) -> Spec:
    """Return the spec of a causal mixer.

    Args:
        kind: The attention type.
        heads: The number of heads.
        window: The number of positions of a sliding window.
        encoding: The position encoding of a sliding window.
        base: The base of rotary encoding, instead of its default.
        norm: The norms of queries and keys of a sliding window and of linear attention.
    """
    if kind not in ATTENTIONS or not ATTENTIONS[kind].is_causal:
        return Spec(kind)
    options: dict[str, OptionValue] = {"causal": True, "heads": heads, "window": window, "encoding": encoding}
    options |= {"base": base} if base else {}
    options |= {"norm": norm} if norm != "none" else {}
    known = ATTENTIONS[kind].options
    return Spec(kind, {name: value for name, value in options.items() if name in known})


def interleave(depth: int, full: int) -> list[int]:
    """Return the layers that are full in a uniform interleaving: the last of each of `full` equal groups."""
    return [round((i + 1) * depth / full) - 1 for i in range(full)]


def contiguous(depth: int, full: int) -> list[list[int]]:
    """Return the full layers of three rules of thumb: the last ones, the first ones, those in the middle."""
    return [[*range(start, start + full)] for start in (depth - full, 0, (depth - full) // 2)]


def as_uniform(config: TrialConfig) -> TrialConfig:
    """Return the baseline of a configuration: all layers of the kind that replaces most of its layers."""
    kinds = _model(config).kinds
    if len(set(kinds)) == 1:
        return config
    return _with_layers(config, [_most_frequent(config)] * len(kinds))


def uniform_interleaving(config: TrialConfig) -> TrialConfig:
    """Return the control of a configuration: as many full layers, at equal distances.

    The other layers have the kind that replaces most of the layers of `config`.
    """
    kinds = _model(config).kinds
    if FULL not in kinds or len(set(kinds)) == 1:
        return as_uniform(config)
    full, other = interleave(len(kinds), kinds.count(FULL)), _most_frequent(config)
    return _with_layers(config, [None if i in full else other for i in range(len(kinds))])


def interleaved_control(config: TrialConfig) -> dict[str, TrialConfig]:
    """Return the uniform interleaving by name, or nothing for a model without full layers.

    Args:
        config: A configuration of a decoder.
    """
    return {"uniform interleaving": uniform_interleaving(config)} if FULL in _model(config).kinds else {}


@dataclass(frozen=True, kw_only=True)
class HybridSpace:
    """Choices of the mixer of each layer and of the hyperparameters of the training.

    Attributes:
        name: The name of the space.
        data: The data.
        model: The decoder.
        training: The training, whose learning rate, weight decay and schedule are drawn. Its batch size is
            the larger of two.
        metric: The primary metric.
        summary: One line for `automl spaces`.
        windows: The sizes of a sliding window to choose from.
        rates: The range of the learning rate.
        baseline: The hyperparameters of trial 0 and of the free answers.
        kinds: The attention types to choose from.
        full: The number of full layers. By default it is drawn.

    Raises:
        InputError: `full` is below 0, or there are not so many layers.
    """

    name: str
    data: LanguageData
    model: LanguageModel
    training: LanguageTraining
    metric: str
    summary: str
    windows: Sequence[int]
    rates: tuple[float, float]
    baseline: Mapping[str, Any]
    kinds: Sequence[str] = KINDS
    full: int | None = None

    def __post_init__(self) -> None:
        if self.full is not None and not 0 <= self.full <= self.model.depth:
            raise InputError(
                f"--full must lie between 0 and {self.model.depth}, the number of layers; got {self.full}"
            )

    def space(self, **changes: Any) -> Space:
        """Return the space, with these fields changed."""
        if changes:
            return replace(self, **changes).space()

        def draw(trial: optuna.Trial, kinds: Sequence[str] = tuple(self.kinds)) -> TrialConfig:
            return self._draw(trial)

        return Space(
            name=self.name,
            draw=draw,
            baseline={"uniform": True, "kind": self._uniform[0], **self.baseline},
            plain={"uniform": True},
            candidate={"uniform": False},
            free=self._free,
            as_baseline=as_uniform,
            controls=interleaved_control,
            with_backbone=self._with_backbone,
            with_layers=self.space,
            summary=self.summary,
        )

    @property
    def _types(self) -> dict[str, str]:
        return {loading.short_name(kind): kind for kind in self.kinds}

    @property
    def _uniform(self) -> list[str]:
        """Kinds of models of one kind. Of full layers alone is a baseline unless fewer are asked for."""
        fewer = self.full is not None and self.full < self.model.depth
        return [*self._types] if fewer else [FULL, *self._types]

    def _with_backbone(self, backbone: str, size: int | None, options: Mapping[str, Any]) -> Space:
        from automl.tasks.language_modelling.model import find_decoder  # imports torch, which takes seconds

        if backbone == self.model.backbone:
            return self.space(model=replace(self.model, options={**self.model.options, **options}))
        decoder = find_decoder(backbone)
        model = LanguageModel(
            backbone=backbone, options=options, weights=PUBLISHED if decoder.published else ""
        )
        tokenizer = None if self.data.source == "recall" else _find_tokenizer(backbone)
        if tokenizer is None and decoder.published and self.data.source != "recall":
            raise InputError(
                f"{backbone} has weights but no tokenizer.json, so its tokens are unknown. Write the file by "
                f"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers, or remove "
                f"the weights to train a new model on bytes"
            )
        other = replace(self, model=model, data=replace(self.data, tokenizer=str(tokenizer or "")))
        if not decoder.published:
            return other.space()
        return other.space(rates=FINE_TUNING, baseline={**self.baseline, "learning_rate": FINE_TUNING_RATE})

    def _draw(self, trial: optuna.Trial) -> TrialConfig:
        model, depth, types = self.model, self.model.depth, self._types
        window = trial.suggest_categorical("window", self.windows)

        def make(kind: str) -> Spec:
            shape = model.shape
            own: dict[str, Any] = {"encoding": shape.encoding, "base": shape.base, "norm": shape.norm}
            return mixer(types[kind], heads=model.heads, window=window, **own)

        layers: list[Spec | None] = [None] * depth
        if trial.suggest_categorical("uniform", [False, True]):
            kind = trial.suggest_categorical("kind", self._uniform)
            layers = [None if kind == FULL else make(kind)] * depth
        else:
            least, most = (1, depth) if self.full is None else (depth - self.full, depth - self.full)
            for i, layer in enumerate(choices.ascending(trial, depth, least=least, most=most), start=1):
                layers[layer] = make(trial.suggest_categorical(f"{choices.TYPE}{i}", [*types]))
        drawn = choices.optimisation(
            trial,
            self.training,
            batch_sizes=[self.training.batch_size // 2, self.training.batch_size],
            rates=self.rates,
            # With a short warm-up, or none, two layers fail to learn recall at the same rates.
            schedules=["one-cycle"],
        )
        config = TrialConfig(task=TASK, data=self.data, model=model, training=drawn, metric=self.metric)
        return _with_layers(config, layers)

    def _free(self) -> list[dict[str, Any]]:
        full, depth, types = self.full, self.model.depth, self._types
        uniform: list[dict[str, Any]] = [{"uniform": True, "kind": kind} for kind in self._uniform[1:]]
        counts = sorted({depth // period for period in PERIODS}) if full is None else [full]
        rules = [(interleave(depth, count), kind) for count in counts if count for kind in types]
        few = depth // 4 if full is None else full
        rules += [(layers, next(iter(types))) for layers in contiguous(depth, few)]
        models = [
            {"uniform": False, **choices.modules([i for i in range(depth) if i not in layers], kind, {})}
            for i, (layers, kind) in enumerate(rules)
            if 0 < len(layers) < depth and (layers, kind) not in rules[:i]
        ]
        # With a number of full layers, models that have it come first.
        ordered = [*uniform, *models] if full is None else [*models, *uniform]
        return [{**model, **self.baseline} for model in ordered]


def _find_tokenizer(backbone: str) -> Path | None:
    from automl.tasks.language_modelling import hugging_face  # imports torch, which takes seconds

    return hugging_face.find_file(backbone.removeprefix(hugging_face.PREFIX), hugging_face.TOKENIZER)


def _model(config: TrialConfig) -> LanguageModel:
    assert isinstance(config.model, LanguageModel), "a space of decoders"
    return config.model


def _most_frequent(config: TrialConfig) -> Spec:
    """Return the spec whose type replaces most of the layers."""
    specs = list(config.model.placement.values())
    kind = Counter(spec.type for spec in specs).most_common(1)[0][0]
    return next(spec for spec in specs if spec.type == kind)


def _with_layers(config: TrialConfig, layers: Sequence[Spec | None]) -> TrialConfig:
    placement = {site_name(i): spec for i, spec in enumerate(layers) if spec is not None}
    return config.change(model={"placement": placement})


BASELINE = {"learning_rate": 2e-3, "weight_decay": 0.1, "schedule": "one-cycle"}


def recall_space(
    depth: int = 2, full: int | None = None, *, examples: int = 38_400, window: int = 4
) -> Space:
    """Return a space of decoders of associative recall, where the placement decides.

    In two layers of this size only a sliding window before a full layer learns it. The scores of all others
    stay at the level of guessing.

    Args:
        depth: The number of layers.
        full: The number of full layers. By default it is drawn.
        examples: The number of training sequences. Models learn late and at once, so the only epoch ends
            with them, and no trial is stopped early.
        window: The size of a sliding window. Deeper models learn faster with 2.
    """
    return HybridSpace(
        name="recall",
        data=LanguageData(source="recall", context=24, vocabulary=16, pairs=6, examples=examples),
        model=LanguageModel(options={"depth": depth, "width": 32, "heads": 1, "mlp": 16}),
        training=LanguageTraining(epochs=1, batch_size=64),
        metric="accuracy",
        # A short convolution does what the window does. Then a random placement may be as good.
        kinds=("sliding", "linear"),
        windows=[window],
        rates=(3e-3, 8e-3),
        baseline={**BASELINE, "learning_rate": 5e-3, "window": window, "batch_size": 64},
        full=full,
        summary="which layer of a small decoder is full, on associative recall; the positive control",
    ).space()


SPACES = (
    recall_space(),
    HybridSpace(
        name="hybrid",
        data=LanguageData(),
        model=LanguageModel(options={"depth": 6, "width": 128, "heads": 4}),
        training=LanguageTraining(epochs=1, batch_size=32),
        metric="loss",
        windows=[16, 64],
        rates=(5e-4, 5e-3),
        baseline={**BASELINE, "window": 64, "batch_size": 32},
        summary="full, sliding, linear or convolution in each layer of a decoder; --data TEXTS",
    ).space(),
)
