"""Grids of studies: spaces whose cells are the rows of published tables, for `--sampler grid`.

Each has a small form, whose name ends in `-small`, on data that come with the package. `automl studies` lists
them, and `automl study` shows their results beside the published figures.

Sources: SimpleSelfAttention, github.com/sdoria/SimpleSelfAttention; Z. Shen et al., Efficient Attention
(2018), arXiv 1812.01243; H. Touvron et al. (2022), arXiv 2203.09795; H. Husain et al., CodeSearchNet (2019),
arXiv 1909.09436.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import optuna

from attention.options import OptionValue
from attention.spec import Spec
from search import code_spaces, detection_spaces, stereo_spaces, vit_spaces
from search.config import (
    CodeModel,
    DetectionData,
    DetectionModel,
    DetectionTraining,
    ImageData,
    ImageTraining,
    Model,
    RetrievalTraining,
    StereoModel,
    StereoTraining,
    TrialConfig,
)
from search.decomposed_spaces import list_stage_sites
from search.detection_spaces import published_sites
from search.space import Space

Draw = Callable[[optuna.Trial], TrialConfig]
_Row = tuple[str, Callable[..., TrialConfig], Mapping[str, Any]]  # name, draw function, reference

SMALL = "-small"  # suffix of a small form
PHOTOS = "-photos"  # suffix of a small form on the user's photographs
RATES = (1e-3, 3e-3, 5e-3, 8e-3, 1e-2, 12e-3, 14e-3)  # learning rates of the published sweep
SSA_SITE = "stage1.block2.branch"
PLAIN, SSA = "xresnet18", "xresnet18 + ssa"
DECOMPOSED: Mapping[str, OptionValue] = {"normalisation": "softmax", "heads": 1}
# Key and value channels of the small forms, which 32 heads must divide.
NARROW: Mapping[str, OptionValue] = {"key_channels": 32, "value_channels": 32}
COUNTS = (1, 5, 7)
BACKBONES = ("torchvision:resnet50", "torchvision:resnet101", "torchvision:resnext101_32x8d")
SMALL_BACKBONES = ("xresnet18", "xresnet34", "xresnet50")
# Kinds of blocks by the classes of the published code, which have layer scale unless init_values is 0.
BLOCKS: Mapping[str, str] = {
    "Block = Layer_scale_init_Block": vit_spaces.KINDS[1],
    "Block, init_values=0": vit_spaces.KINDS[0],
    "ParallelBlock = ParallelLayerScaleInitBlock": vit_spaces.KINDS[3],
    "ParallelBlock, init_values=0": vit_spaces.KINDS[2],
}
# Like CodeSearchNet's code, with a constant learning rate, but with fewer epochs.
CODESEARCHNET = RetrievalTraining(
    epochs=30,
    batch_size=1000,
    optimizer="adam",
    learning_rate=5e-4,
    weight_decay=0.0,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    schedule="step",
    decay_factor=1.0,
    clip=1.0,
    similarity="dot",
    temperature=1.0,
)
ENCODERS: Mapping[str, str] = {"Self Attn": "selfattention", "CNN Self Attn": "cnn-selfattention"}


def _xresnet(
    data: ImageData, epochs: int, options: Mapping[str, Any], spec: str | None, rate: float
) -> TrialConfig:
    """Return an xresnet18 as in SimpleSelfAttention's comparisons: batches of 64, no mixup."""
    return TrialConfig(
        data=data,
        model=Model(
            backbone="xresnet18",
            options=options,
            placement={} if spec is None else {SSA_SITE: Spec(spec)},
        ),
        training=ImageTraining(epochs=epochs, batch_size=64, learning_rate=rate),
    )


def _rates(trial: optuna.Trial, *, data: ImageData, epochs: int, options: Mapping[str, Any]) -> TrialConfig:
    rate = trial.suggest_categorical("learning_rate", RATES)
    return _xresnet(data, epochs, options, None, rate)


def _compared(
    trial: optuna.Trial, *, data: ImageData, epochs: int, rate: float, options: Mapping[str, Any]
) -> TrialConfig:
    chosen = trial.suggest_categorical("model", [PLAIN, SSA])
    return _xresnet(data, epochs, options, "ssa" if chosen == SSA else None, rate)


# Data, epochs and options of each form of the two grids: the published data and stem, or a narrow model.
_SSA_FORMS: Mapping[str, Mapping[str, Any]] = {
    "": {
        "data": ImageData(source="woof1", size=128),
        "epochs": 50,
        "options": {"stem": "32-64-64"},
    },
    SMALL: {"data": ImageData(source="digits", size=32), "epochs": 4, "options": {"width": 0.25}},
    SMALL + PHOTOS: {"data": ImageData(source="folder", size=64), "epochs": 4, "options": {"width": 0.25}},
}


def equal_time_grid(rate: float, form: str) -> str:
    """Return the name of the grid of `ssa-equal-time` at a learning rate, in a form."""
    return f"ssa-equal-time-{rate:g}{form}"


@dataclass(frozen=True, kw_only=True)
class _Detector:
    """Settings of the grids of detection. `more` holds further options of a module."""

    data: DetectionData = detection_spaces.COCO
    model: DetectionModel = detection_spaces.FULL
    training: DetectionTraining = detection_spaces.COCO_TRAINING
    backbones: Sequence[str] = BACKBONES
    more: Mapping[str, OptionValue] = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        return bool(self.more)

    def sites(self, model: DetectionModel, count: int) -> Sequence[str]:
        """Return the sites of `count` modules: none, one after res3, and five or seven in backbone and
        pyramid.
        """
        res3, res4, five, seven = published_sites(model)
        if count <= 1:
            return res3[:count]
        if not self.is_small:
            return five if count == 5 else seven
        # The pyramid's upper levels have a few positions here, so finer sites are used.
        fine = [*res3, "stage1.block1", "stage1.block2", "fpn.p2", "fpn.p3"]
        return fine if count == 5 else [*fine, *res4, "fpn.p4"]

    def config(
        self, count: int, kind: str, options: Mapping[str, OptionValue], backbone: str | None = None
    ) -> TrialConfig:
        model = self.model if backbone is None else replace(self.model, backbone=backbone)
        if kind == "decomposed":
            options = {**DECOMPOSED, **self.more, **options}
        placement = {site: Spec(kind, dict(options)) for site in self.sites(model, count)}
        return TrialConfig(
            task=detection_spaces.TASK,
            data=self.data,
            model=replace(model, placement=placement),
            training=self.training,
        )


_FULL = _Detector()
_SMALL = _Detector(
    data=detection_spaces.SCENES,
    model=detection_spaces.SMALL,
    training=detection_spaces.SCENES_TRAINING,
    backbones=SMALL_BACKBONES,
    more=NARROW,
)


def _normalisation(trial: optuna.Trial, *, detector: _Detector) -> TrialConfig:
    kind = trial.suggest_categorical("normalisation", ["none", "scaling-keys", "softmax"])
    return detector.config(1, "decomposed", {"normalisation": kind})


def _heads(trial: optuna.Trial, *, detector: _Detector) -> TrialConfig:
    return detector.config(1, "decomposed", {"heads": trial.suggest_categorical("heads", [1, 8, 32])})


def _modules(trial: optuna.Trial, *, detector: _Detector) -> TrialConfig:
    return detector.config(trial.suggest_categorical("modules", COUNTS), "decomposed", {})


def _conventional(trial: optuna.Trial, *, detector: _Detector) -> TrialConfig:
    """Compare with conventional attention: SAGAN's, which keeps the weights of all pairs of positions."""
    kind = trial.suggest_categorical("attention", ["decomposed", "conventional"])
    count = trial.suggest_categorical("modules", COUNTS)
    if kind == "decomposed":
        return detector.config(count, kind, {})
    return detector.config(count, "sagan", {"form": "explicit"})


def _backbones(trial: optuna.Trial, *, detector: _Detector) -> TrialConfig:
    backbone = trial.suggest_categorical("backbone", detector.backbones)
    return detector.config(trial.suggest_categorical("modules", [0, 7]), "decomposed", {}, backbone)


def _imagenet(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw no module, one at the end of res4, or one at the ends of both res3 and res4."""
    count = trial.suggest_categorical("modules", [0, 1, 2])
    if small:
        chosen = ["stage2.block2", "stage3.block2"][2 - count :]
        return TrialConfig(
            data=ImageData(source="digits", size=32),
            model=Model(backbone="xresnet18", options={"width": 0.25}, placement=_decomposed(chosen)),
            training=ImageTraining(epochs=4),
        )
    names = [site.name for site in list_stage_sites(BACKBONES[0])]
    ends = [[name for name in names if name.startswith(stage)][-1] for stage in ("stage2.", "stage3.")]
    return TrialConfig(
        data=ImageData(source="folder", size=224),
        model=Model(backbone=BACKBONES[0], placement=_decomposed(ends[2 - count :])),
        training=ImageTraining(
            epochs=90,
            optimizer="sgd",
            learning_rate=0.1,
            weight_decay=1e-4,
            batch_size=256,
            schedule="warmup-cosine",
            label_smoothing=0.0,
        ),
    )


def _decomposed(sites: Sequence[str]) -> dict[str, Spec]:
    return {site: Spec("decomposed", dict(DECOMPOSED)) for site in sites}


def _stereo(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw PSMNet, plain or with one module after its pyramid."""
    chosen = trial.suggest_categorical("model", ["PSMNet", "DA-PSMNet"])
    model: StereoModel = stereo_spaces.SMALL if small else stereo_spaces.FULL
    placement = _decomposed(["backbone.pyramid"] if chosen == "DA-PSMNet" else [])
    return TrialConfig(
        task=stereo_spaces.TASK,
        data=stereo_spaces.PLANES if small else stereo_spaces.SCENEFLOW,
        model=replace(model, placement=placement),
        training=StereoTraining(epochs=4, batch_size=4, learning_rate=4e-3, schedule="one-cycle")
        if small
        else StereoTraining(),
    )


def _blocks(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw a kind of block, with common hyperparameters and the published depth."""
    kind = BLOCKS[trial.suggest_categorical("block", list(BLOCKS))]
    options: dict[str, Any] = {"block": kind, "embed_dim": 192, "heads": 3, "depth": 12}
    if small:
        options |= {"embed_dim": 48, "depth": 4, "patch_size": 4}
    if kind.endswith("layer-scale"):
        options["initial_scale"] = 1e-4
    if kind.startswith("parallel"):
        options["branches"] = 2
    return TrialConfig(
        data=ImageData(source="digits", size=32) if small else ImageData(source="folder", size=168),
        model=Model(backbone="vit", options=options),
        training=replace(vit_spaces.BLOCKS_TRAINING, epochs=6, batch_size=64, learning_rate=1e-3)
        if small
        else vit_spaces.BLOCKS_TRAINING,
    )


def _encoders(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw one of two encoders: in batches of 1,000 as published, or small batches and one encoder."""
    backbone = ENCODERS[trial.suggest_categorical("encoder", list(ENCODERS))]
    training = RetrievalTraining(epochs=4, batch_size=64, learning_rate=2e-3) if small else CODESEARCHNET
    model = CodeModel(backbone=backbone, options={"pooling": "weighted_mean"}, shared=small)
    return TrialConfig(task=code_spaces.TASK, model=model, training=training)


def _grids() -> Iterator[Space]:
    for form, settings in _SSA_FORMS.items():
        yield _grid(f"ssa-lr-sweep{form}", partial(_rates, **settings), {"learning_rate": RATES[3]})
        for rate in RATES:
            draw = partial(_compared, **settings, rate=rate)
            yield _grid(equal_time_grid(rate, form), draw, {"model": PLAIN})
    for form, detector in (("", _FULL), (SMALL, _SMALL)):
        of_detectors: Sequence[_Row] = (
            ("da-normalisation", _normalisation, {"normalisation": "softmax"}),
            ("da-heads", _heads, {"heads": 1}),
            ("da-modules", _modules, {"modules": 1}),
            ("da-conventional", _conventional, {"attention": "decomposed", "modules": 1}),
            ("da-backbones", _backbones, {"backbone": detector.backbones[0], "modules": 0}),
        )
        others: Sequence[_Row] = (
            ("da-imagenet", _imagenet, {"modules": 0}),
            ("da-stereo", _stereo, {"model": "PSMNet"}),
            ("vit-blocks", _blocks, {"block": next(iter(BLOCKS))}),
            ("codesearch-encoders", _encoders, {"encoder": "Self Attn"}),
        )
        for name, function, reference in of_detectors:
            yield _grid(name + form, partial(function, detector=detector), reference)
        for name, function, reference in others:
            yield _grid(name + form, partial(function, small=bool(form)), reference)


def _grid(name: str, draw: Draw, reference: Mapping[str, Any]) -> Space:
    """Return the space of a grid. `reference` is the cell that the other cells are compared with."""
    as_baseline = partial(_as_reference, draw, reference)
    return Space(
        name=name, draw=draw, baseline=reference, plain=reference, as_baseline=as_baseline, summary=name
    )


def _as_reference(draw: Draw, reference: Mapping[str, Any], config: TrialConfig) -> TrialConfig:
    """Return a configuration with the reference's model and its own hyperparameters."""
    model = draw(optuna.trial.FixedTrial(dict(reference))).model  # type: ignore[arg-type]
    weights, digest = config.model.weights, config.model.weights_digest
    return replace(config, model=replace(model, weights=weights, weights_digest=digest))


GRIDS: Mapping[str, Space] = {space.name: space for space in _grids()}
