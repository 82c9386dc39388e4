"""Spaces of detection: attention in a backbone and on its feature pyramid; and the published comparisons.

Source: Z. Shen et al., Efficient Attention (2018), arXiv 1812.01243, which has decomposed attention after
res3, after res4, and at up to seven sites of ResNet and FPN.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import optuna

from attention.options import OptionValue
from attention.spec import Spec
from automl.task.published_study import read_studies
from automl.tasks.detection import DetectionData, DetectionModel, DetectionTraining
from search import choices
from search.config import TrialConfig
from search.grid import DECOMPOSED, grid
from search.grid import SMALL as SMALL_FORM
from search.space import Space

if TYPE_CHECKING:
    from backbones.site import Site

TASK = "detection"

# The bundled scenes, and a model whose epoch takes seconds on a CPU. A scene has a handful of digits, so a
# few small anchors suffice.
SCENES = DetectionData(source="scenes", size=96)
SMALL = DetectionModel(
    backbone="xresnet18",
    options={"width": 0.25},
    channels=32,
    representation=128,
    anchor=12,
    proposals=100,
    regions=32,
    detections=20,
    norm="group",
)
SCENES_TRAINING = DetectionTraining(epochs=4, batch_size=8, flip=False, smallest=0.8, largest=1.25)
SCENES_PLAIN = choices.plain(learning_rate=4e-3, weight_decay=1e-2, batch_size=8, schedule="one-cycle")

# Images of 800 pixels at the longer side. This training does not diverge from new weights. The published one,
# SGD at 0.02 from a pretrained backbone, does.
COCO = DetectionData(source="coco", size=800)
FULL = DetectionModel(backbone="torchvision:resnet50")
COCO_TRAINING = DetectionTraining(
    epochs=12, batch_size=16, learning_rate=2e-4, weight_decay=5e-2, schedule="warmup-cosine", clip=1.0
)
COCO_PLAIN = choices.plain(learning_rate=2e-4, weight_decay=5e-2, batch_size=16, schedule="warmup-cosine")
MOST = 7  # modules

KIND: Mapping[str, Any] = {"normalisation": "softmax", "decomposed_heads": 1, "reduction": 2}
PYRAMID = ("fpn.p2", "fpn.p3", "fpn.p4", "fpn.p5")


def list_sites(model: DetectionModel) -> list["Site"]:
    """Return the sites after residual blocks and in their branches, and the levels of the pyramid."""
    import torch  # takes seconds

    from automl.task.base import remember_sites
    from automl.tasks.detection.model import SIDE, build_detector

    narrow = replace(model, representation=8, proposals=10)
    sites = remember_sites(
        ["detection space", model.backbone, dict(model.options), model.channels],
        lambda: build_detector(narrow, narrow.build(classes=2, size=SIDE), classes=1),
        lambda: [torch.rand(3, SIDE, SIDE) for _ in range(2)],
    )
    return [site for site in sites if ".block" in site.name or site.name in PYRAMID]


def published_sites(model: DetectionModel) -> list[list[str]]:
    """Return the sites after res3; after res4; of five modules; and of seven.

    Five are after res3 and res4 and on three levels of the pyramid; seven are after res3 to res5 and on all
    four levels.
    """
    names = [site.name for site in list_sites(model)]
    res3, res4, res5 = (_last(names, stage) for stage in (2, 3, 4))
    return [[res3], [res4], [res3, res4, *PYRAMID[1:]], [res3, res4, res5, *PYRAMID]]


def published(model: DetectionModel, plain: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return parameters of decomposed attention at the `published_sites`."""
    names = [site.name for site in list_sites(model)]
    chosen = [sorted(map(names.index, indices)) for indices in published_sites(model)]
    return [{**plain, **choices.modules(indices, "decomposed", KIND)} for indices in chosen]


def _last(names: Sequence[str], stage: int) -> str:
    """Return the site after the last block of a stage."""
    return [name for name in names if name.startswith(f"stage{stage}.block") and name.count(".") == 1][-1]


def draw(
    trial: optuna.Trial,
    kinds: Sequence[str] = choices.TYPES,
    *,
    data: DetectionData,
    model: DetectionModel,
    training: DetectionTraining,
    batch_sizes: Sequence[int],
    rates: tuple[float, float],
) -> TrialConfig:
    """Draw a Mask R-CNN with up to seven modules."""
    placement = choices.placement(trial, list_sites(model), most=MOST, kinds=kinds)
    return TrialConfig(
        task=TASK,
        data=data,
        model=replace(model, placement=placement),
        training=choices.optimisation(
            trial,
            training,
            batch_sizes=batch_sizes,
            rates=rates,
            schedules=["warmup-cosine", "one-cycle", "flat-cosine"],
        ),
    )


def coco_space(model: DetectionModel = FULL) -> Space:
    """Return the space of images with objects in COCO's layout, with the backbone of `model`."""
    return Space(
        name="coco-da",
        draw=partial(
            draw,
            kinds=choices.LINEAR,
            data=COCO,
            model=model,
            training=COCO_TRAINING,
            batch_sizes=[8, 16, 32],
            rates=(3e-5, 3e-3),
        ),
        baseline=COCO_PLAIN,
        free=partial(published, model, COCO_PLAIN),
        summary="Mask R-CNN, attention in its backbone and pyramid; --data of COCO's layout",
        with_backbone=lambda name, _, options: coco_space(replace(FULL, backbone=name, options=options)),
    )


SPACES = (
    Space(
        name="scenes",
        draw=partial(
            draw,
            data=SCENES,
            model=SMALL,
            training=SCENES_TRAINING,
            batch_sizes=[4, 8, 16],
            rates=(3e-4, 2e-2),
        ),
        baseline=SCENES_PLAIN,
        free=partial(published, SMALL, SCENES_PLAIN),
        summary="boxes and masks of digits in bundled scenes of 96 px; a narrow Mask R-CNN",
    ),
    coco_space(),
)


# Key and value channels of the small forms, which 32 heads must divide.
NARROW: Mapping[str, OptionValue] = {"key_channels": 32, "value_channels": 32}
COUNTS = (1, 5, 7)
BACKBONES = ("torchvision:resnet50", "torchvision:resnet101", "torchvision:resnext101_32x8d")
SMALL_BACKBONES = ("xresnet18", "xresnet34", "xresnet50")


@dataclass(frozen=True)
class _Detector:
    """Settings of the grids of detection. `more` holds further options of a module."""

    data: DetectionData = COCO
    model: DetectionModel = FULL
    training: DetectionTraining = COCO_TRAINING
    backbones: Sequence[str] = BACKBONES
    more: Mapping[str, OptionValue] = field(default_factory=dict)

    def sites(self, model: DetectionModel, count: int) -> Sequence[str]:
        """Return the sites of `count` modules: none, after res3, or five or seven of backbone and pyramid."""
        res3, res4, five, seven = published_sites(model)
        if count <= 1:
            return res3[:count]
        if not self.more:
            return five if count == 5 else seven
        # The pyramid's upper levels have a few positions here, so finer sites are used.
        fine = [*res3, "stage1.block1", "stage1.block2", "fpn.p2", "fpn.p3"]
        return fine if count == 5 else [*fine, *res4, "fpn.p4"]

    def config(
        self,
        count: int,
        options: Mapping[str, OptionValue],
        *,
        kind: str = "decomposed",
        backbone: str | None = None,
    ) -> TrialConfig:
        model = self.model if backbone is None else replace(self.model, backbone=backbone)
        if kind == "decomposed":
            options = {**DECOMPOSED, **self.more, **options}
        placement = {site: Spec(kind, dict(options)) for site in self.sites(model, count)}
        return TrialConfig(
            task=TASK, data=self.data, model=replace(model, placement=placement), training=self.training
        )

    def normalisation(self, trial: optuna.Trial) -> TrialConfig:
        kind = trial.suggest_categorical("normalisation", ["none", "scaling-keys", "softmax"])
        return self.config(1, {"normalisation": kind})

    def heads(self, trial: optuna.Trial) -> TrialConfig:
        return self.config(1, {"heads": trial.suggest_categorical("heads", [1, 8, 32])})

    def modules(self, trial: optuna.Trial) -> TrialConfig:
        return self.config(trial.suggest_categorical("modules", COUNTS), {})

    def conventional(self, trial: optuna.Trial) -> TrialConfig:
        """Compare with conventional attention: SAGAN's, which keeps the weights of all pairs of positions."""
        kind = trial.suggest_categorical("attention", ["decomposed", "conventional"])
        count = trial.suggest_categorical("modules", COUNTS)
        if kind == "decomposed":
            return self.config(count, {})
        return self.config(count, {"form": "explicit"}, kind="sagan")

    def several_backbones(self, trial: optuna.Trial) -> TrialConfig:
        backbone = trial.suggest_categorical("backbone", self.backbones)
        return self.config(trial.suggest_categorical("modules", [0, 7]), {}, backbone=backbone)


def _grids() -> Iterator[Space]:
    small = _Detector(SCENES, SMALL, SCENES_TRAINING, SMALL_BACKBONES, NARROW)
    for form, detector in (("", _Detector()), (SMALL_FORM, small)):
        for name, draw, reference in (
            ("da-normalisation", detector.normalisation, {"normalisation": "softmax"}),
            ("da-heads", detector.heads, {"heads": 1}),
            ("da-modules", detector.modules, {"modules": 1}),
            ("da-conventional", detector.conventional, {"attention": "decomposed", "modules": 1}),
            ("da-backbones", detector.several_backbones, {"backbone": detector.backbones[0], "modules": 0}),
        ):
            yield grid(name + form, draw, reference)


GRIDS = tuple(_grids())
STUDIES = read_studies(__file__)
