"""The published comparisons of decomposed attention in detectors (arXiv 1812.01243)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import optuna

from attention.options import OptionValue
from attention.spec import Spec
from automl.task.published_study import read_studies
from automl.tasks.detection import DetectionData, DetectionModel, DetectionTraining, space
from search.config import TrialConfig
from search.grid import DECOMPOSED, SMALL, grid
from search.space import Space

# Key and value channels of the small forms, which 32 heads must divide.
NARROW: Mapping[str, OptionValue] = {"key_channels": 32, "value_channels": 32}
COUNTS = (1, 5, 7)
BACKBONES = ("torchvision:resnet50", "torchvision:resnet101", "torchvision:resnext101_32x8d")
SMALL_BACKBONES = ("xresnet18", "xresnet34", "xresnet50")


@dataclass(frozen=True)
class _Detector:
    """Settings of the grids of detection. `more` holds further options of a module."""

    data: DetectionData = space.COCO
    model: DetectionModel = space.FULL
    training: DetectionTraining = space.COCO_TRAINING
    backbones: Sequence[str] = BACKBONES
    more: Mapping[str, OptionValue] = field(default_factory=dict)

    def sites(self, model: DetectionModel, count: int) -> Sequence[str]:
        """Return the sites of `count` modules: none, after res3, or five or seven of backbone and pyramid."""
        res3, res4, five, seven = space.published_sites(model)
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
            task=space.TASK, data=self.data, model=replace(model, placement=placement), training=self.training
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
    small = _Detector(space.SCENES, space.SMALL, space.SCENES_TRAINING, SMALL_BACKBONES, NARROW)
    for form, detector in (("", _Detector()), (SMALL, small)):
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
