"""The configuration of detection."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from search.config.sections import Data, Model, Training


@dataclass(frozen=True, kw_only=True)
class DetectionData(Data):
    """Images with objects. source: `scenes`, or `coco` for a folder of COCO's layout at a path.

    size: of the longer side of an image in pixels; larger ones are scaled down to it.
    """

    source: str = "scenes"
    size: int = 96

    def problems(self) -> Iterator[str]:
        if not 64 <= self.size <= 2048:
            yield f"data.size must lie between 64 and 2048 pixels; got {self.size}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class DetectionModel(Model):
    """Faster R-CNN over a backbone with a feature pyramid, or Mask R-CNN, which finds masks, too.

    masks: whether it finds masks where the data have some.
    channels, representation, anchor, proposals, regions, detections: as `build_detector` has them.
    frozen_stages: of the backbone from its stem on, whose weights stay as they are. frozen_norms: whether
        batch norms of the backbone stay as they are. Both are for a backbone that was trained.
    norm: in the pyramid and the heads: `group`, with which a detector learns sooner from new weights, or
        `none`, as torchvision has them.
    """

    masks: bool = True
    channels: int = 256
    representation: int = 1024
    anchor: int = 32
    proposals: int = 1000
    regions: int = 512
    detections: int = 100
    frozen_stages: int = 0
    frozen_norms: bool = False
    norm: Literal["none", "group"] = "none"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("channels", "representation", "anchor", "proposals", "regions", "detections"):
            if not 1 <= getattr(self, name) <= 10_000:
                yield f"model.{name} must lie between 1 and 10,000; got {getattr(self, name)}"
        if not 0 <= self.frozen_stages <= 4:
            yield f"model.frozen_stages must lie between 0 and 4; got {self.frozen_stages}"
        if (self.frozen_stages or self.frozen_norms) and not self.weights:
            yield "model.frozen_stages and model.frozen_norms need model.weights; new ones would not learn"


@dataclass(frozen=True, kw_only=True)
class DetectionTraining(Training):
    """With the losses of proposals, boxes and masks, each with weight 1.

    flip: half of the images are mirrored. smallest, largest: of the factors that images are scaled by, each
        drawn; what is then larger than `data.size` is cropped at random.
    """

    batch_size: int = 16
    flip: bool = True
    smallest: float = 1.0
    largest: float = 1.0

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0.1 <= self.smallest <= self.largest <= 10:
            yield (
                f"training.smallest and training.largest must lie between 0.1 and 10, in this order; got "
                f"{self.smallest} and {self.largest}"
            )
