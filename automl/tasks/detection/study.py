"""The published comparisons of decomposed attention in detectors (arXiv 1812.01243)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import optuna

from attention.options import OptionValue
from attention.spec import Spec
from automl.tasks.detection import DetectionData, DetectionModel, DetectionTraining, space
from automl.tasks.published_study import SOURCE_OF_DECOMPOSED, UNPRINTED, Row, Study
from search.config import TrialConfig
from search.grid import DECOMPOSED, SMALL, grid
from search.space import Space

# Key and value channels of the small forms, which 32 heads must divide.
NARROW: Mapping[str, OptionValue] = {"key_channels": 32, "value_channels": 32}
COUNTS = (1, 5, 7)
BACKBONES = ("torchvision:resnet50", "torchvision:resnet101", "torchvision:resnext101_32x8d")
SMALL_BACKBONES = ("xresnet18", "xresnet34", "xresnet50")
COCO = "a folder of COCO's layout: --data FOLDER"
COCO_2017: Mapping[str, str] = {
    "model": "torchvision:resnet50",
    "data": "MS-COCO 2017",
    "inputs": "118,287 images",
    "size": f"{UNPRINTED}800 px",
    "epochs": f"{UNPRINTED}12",
    "scored": "a split that it does not name",
}
AP: Mapping[str, str] = {"box_ap": "box AP", "mask_ap": "mask AP"}
NAN = "NaN (diverged)"
OOM = "OOM (did not fit in memory)"


@dataclass(frozen=True, kw_only=True)
class _Detector:
    """Settings of the grids of detection. `more` holds further options of a module."""

    data: DetectionData = space.COCO
    model: DetectionModel = space.FULL
    training: DetectionTraining = space.COCO_TRAINING
    backbones: Sequence[str] = BACKBONES
    more: Mapping[str, OptionValue] = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        return bool(self.more)

    def sites(self, model: DetectionModel, count: int) -> Sequence[str]:
        """Return the sites of `count` modules: none, one after res3, and five or seven in backbone and
        pyramid.
        """
        res3, res4, five, seven = space.published_sites(model)
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
            task=space.TASK,
            data=self.data,
            model=replace(model, placement=placement),
            training=self.training,
        )


_FULL = _Detector()
_SMALL = _Detector(
    data=space.SCENES,
    model=space.SMALL,
    training=space.SCENES_TRAINING,
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


def _grids() -> Iterator[Space]:
    for form, detector in (("", _FULL), (SMALL, _SMALL)):
        for name, function, reference in (
            ("da-normalisation", _normalisation, {"normalisation": "softmax"}),
            ("da-heads", _heads, {"heads": 1}),
            ("da-modules", _modules, {"modules": 1}),
            ("da-conventional", _conventional, {"attention": "decomposed", "modules": 1}),
            ("da-backbones", _backbones, {"backbone": detector.backbones[0], "modules": 0}),
        ):
            yield grid(name + form, partial(function, detector=detector), reference)


def _ap(name: str, box: str, mask: str, gains: Sequence[str] = (), plain: str = "") -> Row:
    keys = ("box_ap", "mask_ap", "box_ap gain", "mask_ap gain")
    return Row(name=name, figures=dict(zip(keys, (box, mask, *gains), strict=False)), plain=plain)


GRIDS = tuple(_grids())
STUDIES: Sequence[Study] = (
    Study(
        name="da-modules",
        summary="1, 5 and 7 decomposed attentions in a Mask R-CNN",
        source=SOURCE_OF_DECOMPOSED,
        columns=AP,
        setup=COCO_2017,
        rows=[_ap("1", "40.2", "36.0"), _ap("5", "40.6", "36.1"), _ap("7", "41.2", "36.7")],
        data=COCO,
    ),
    Study(
        name="da-normalisation",
        summary="no normalisation, scaling and softmax in decomposed attention",
        source=SOURCE_OF_DECOMPOSED,
        columns=AP,
        setup=COCO_2017,
        rows=[_ap("None", NAN, NAN), _ap("Scaling", "40.2", "35.9"), _ap("Softmax", "40.2", "36.0")],
        data=COCO,
        notes=["Scaling divides by sqrt(k), as in the blog post of the source (scaling-keys)."],
    ),
    Study(
        name="da-heads",
        summary="1, 8 and 32 heads in decomposed attention",
        source=SOURCE_OF_DECOMPOSED,
        columns=AP,
        setup=COCO_2017,
        rows=[_ap("1", "40.2", "36.0"), _ap("8", "40.3", "36.0"), _ap("32", "40.4", "35.9")],
        data=COCO,
    ),
    Study(
        name="da-conventional",
        summary="1, 5 and 7 modules of decomposed and of conventional attention; see --max-memory",
        source=SOURCE_OF_DECOMPOSED,
        columns=AP,
        setup=COCO_2017,
        rows=[
            _ap("DA, 1", "40.2", "36.0"),
            _ap("DA, 5", "40.6", "36.1"),
            _ap("DA, 7", "41.2", "36.7"),
            _ap("conventional, 1", "40.3", "35.9"),
            _ap("conventional, 5", OOM, OOM),
            _ap("conventional, 7", OOM, OOM),
        ],
        data=COCO,
        small={"max_memory": "55MB"},
    ),
    Study(
        name="da-backbones",
        summary="ResNet-50, ResNet-101 and ResNeXt-101 with 0 and 7 decomposed attentions",
        source=SOURCE_OF_DECOMPOSED,
        columns=AP,
        setup={
            **COCO_2017,
            "model": "torchvision:resnet101 / torchvision:resnet50 / torchvision:resnext101_32x8d",
        },
        rows=[
            row
            for name, plain, with_da, gains in (
                ("ResNet-50", ("39.4", "35.1"), ("41.2", "36.7"), ("+1.8", "+1.6")),
                ("ResNet-101", ("41.3", "36.6"), ("43.1", "37.9"), ("+1.8", "+1.3")),
                ("ResNeXt-101", ("43.5", "38.5"), ("44.9", "39.5"), ("+1.4", "+1.0")),
            )
            for row in (
                _ap(name, *plain),
                _ap(f"{name} + DA", *with_da, gains, plain=name),
            )
        ],
        data=COCO,
        notes=[
            "The source prints one figure and one improvement for each backbone, such as 39.4 (+1.8). "
            "That the figure is the plain model's, and that DA has seven modules, is inferred from its "
            "sums: 39.4 + 1.8 = 41.2 is its figure of seven modules, and 41.3 + 1.8 = 43.1 that of DA "
            "with ResNet-101 in its last table. The last table has 45.9 for ResNeXt-101, not 44.9.",
            "Figures of other methods that the source quotes, AP: TDM Faster R-CNN (Inception-ResNet-v2) "
            "36.8, Mask R-CNN (ResNeXt-101) 39.8, Soft-NMS (Aligned-Inception-ResNet) 40.9, Lighthead "
            "R-CNN (ResNet-101) 41.5, Fitness-NMS (ResNet-101) 41.8. They are not run here.",
        ],
    ),
)
