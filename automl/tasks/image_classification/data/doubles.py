"""Find images with two labels, and copies of an image, by the hash of their files."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from automl.data.records import Item
from automl.data.tally import Tally

CONTRADICTION = "images that are in two classes"
NEEDED = "images that are in two classes (kept, since a class would have none without them)"
COPY = "copies of another image of their class and split"


def drop_contradictions(
    splits: Mapping[str, Sequence[Item]], classes: Sequence[str], tally: Tally
) -> dict[str, list[Item]]:
    """Leave out images that have two labels, in one split or in several. Count them and copies in `tally`.

    No label can be learned from them, and one of the two would always count as wrong. They stay if a class of
    a split would have no image without them. Copies with one label are kept: a user may repeat images on
    purpose, and copies are always in one split.
    """
    by_content: dict[bytes, list[Item]] = defaultdict(list)
    for items in splits.values():
        for item in items:
            by_content[item.content].append(item)
    double = {c: items for c, items in by_content.items() if len({item.label for item in items}) > 1}
    kept = {split: [item for item in items if item.content not in double] for split, items in splits.items()}
    pairs = [_describe_pair(items, classes) for items in double.values()]
    if all(
        {item.label for item in kept[split]} == {item.label for item in items}
        for split, items in splits.items()
    ):
        tally.leave_out(CONTRADICTION, pairs)
    else:
        tally.keep(NEEDED, pairs)
        kept = {split: list(items) for split, items in splits.items()}
    for items in kept.values():
        first: dict[tuple[bytes, int], str] = {}
        copies = [i.name for i in items if first.setdefault((i.content, i.label), i.name) != i.name]
        tally.keep(COPY, copies)
    return kept


def _describe_pair(items: Sequence[Item], classes: Sequence[str]) -> str:
    first = items[0]
    other = next(item for item in items if item.label != first.label)
    if first.name == other.name:  # Two rows of `labels.csv` name one file.
        return f"{first.name} as {classes[first.label]} and {classes[other.label]}"
    return f"{first.name} and {other.name}"
