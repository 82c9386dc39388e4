"""Summarise a folder in COCO's layout: categories, objects, splits and sizes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from automl.data.pictures import describe_sizes
from automl.data.splits import SPLITS
from automl.data.tally import Tally, join_examples
from automl.tasks.detection import DetectionData
from automl.tasks.detection.data.dataset import open_detection_records
from automl.tasks.detection.data.objects import Photo, check_sizes


@dataclass(frozen=True, kw_only=True)
class DetectionOverview:
    """Figures that `automl data` prints about a folder in COCO's layout.

    Attributes:
        objects: number of objects by category and split, without crowds.
        images, empty, crowds: number of images, of images without objects, and of crowds of each split.
        how: how each split was made.
        sizes: `(width, height)` of the images in pixels.
        masks: whether every object has a mask.
        left_out: why objects were left out.
        tally: images that were turned or duplicated.
    """

    objects: Mapping[str, Mapping[str, int]]
    images: Mapping[str, int]
    empty: Mapping[str, int]
    crowds: Mapping[str, int]
    how: Mapping[str, str]
    sizes: Sequence[tuple[int, int]]
    masks: bool
    left_out: Sequence[str]
    tally: Tally

    def lines(self) -> Iterator[str]:
        width = max(8, *(len(name) for name in self.objects))
        yield f"{'category':{width}}" + "".join(f"{split:>12}" for split in SPLITS)
        totals = {split: sum(row[split] for row in self.objects.values()) for split in SPLITS}
        rows = {**self.objects, "all": totals, "images": self.images, "empty": self.empty}
        if any(self.crowds.values()):
            rows["crowds"] = self.crowds
        for name, row in rows.items():
            yield f"{name:{width}}" + "".join(f"{row[split]:>12}" for split in SPLITS)
        if self.tally:
            yield str(self.tally)
        yield f"{'masks':11} {'' if self.masks else 'not '}of every object"
        for split, how in self.how.items():
            yield f"{split:11} {how}"
        yield describe_sizes(self.sizes)
        if self.left_out:
            count, shown = len(self.left_out), join_examples(self.left_out, "; ")
            yield f"{'left out':11} {count} {'object' if count == 1 else 'objects'}: {shown}"


def summarise_detection(path: str | Path) -> DetectionOverview:
    """Return the overview of a folder without decoding. Raises InputError for invalid data."""
    records = open_detection_records(DetectionData(source="coco", path=str(path)))
    listing, tally = records.file, Tally()
    splits: dict[str, list[Photo]] = {split: records.inputs(split) for split in SPLITS}
    for photo, turn in zip(listing.inputs, check_sizes(listing.inputs), strict=True):
        if turn is not None:
            tally.keep(turn, [photo.name])
    counts = {
        split: Counter(
            (entry["category_id"], bool(entry.get("iscrowd")))
            for photo in photos
            for entry in photo.annotations
        )
        for split, photos in splits.items()
    }
    return DetectionOverview(
        objects={
            name: {split: counts[split][number, False] for split in SPLITS}
            for number, name in listing.categories.items()
        },
        images={split: len(photos) for split, photos in splits.items()},
        empty={split: sum(not photo.annotations for photo in photos) for split, photos in splits.items()},
        crowds={
            split: sum(count for (_, crowd), count in objects.items() if crowd)
            for split, objects in counts.items()
        },
        how=records.describe_splits(),
        sizes=[(photo.width, photo.height) for photos in splits.values() for photo in photos],
        masks=listing.has_masks,
        left_out=listing.left_out,
        tally=tally + records.tally,
    )
