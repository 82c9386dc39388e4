"""One image under two labels, and copies of an image, by the content of their files."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from attention.errors import InputError
from automl.data.items import Item
from automl.data.tally import Tally

CONTRADICTION = "images that are in two classes"
COPY = "copies of another image of their class and split"


def without_contradictions(
    splits: Mapping[str, Sequence[Item]], classes: Sequence[str], tally: Tally
) -> dict[str, list[Item]]:
    """Leave out images that have two labels, in one split or over all; count them and copies in `tally`.

    No label can be learned from them, and whichever a model chooses would count as wrong. Copies with one
    label are kept: a person may repeat images on purpose, and copies are always in one split.

    Raises InputError for a class that then has no image to train on.
    """
    alike: dict[bytes, list[Item]] = defaultdict(list)
    for items in splits.values():
        for item in items:
            alike[item.content].append(item)
    double = {content: items for content, items in alike.items() if len({item.label for item in items}) > 1}
    tally.leave_out(CONTRADICTION, (_pair(items, classes) for items in double.values()))
    kept = {split: [item for item in items if item.content not in double] for split, items in splits.items()}
    for items in kept.values():
        first: dict[bytes, str] = {}
        tally.keep(COPY, [i.name for i in items if first.setdefault(i.content, i.name) != i.name])
    _check_classes(splits["train"], kept["train"], classes, double)
    return kept


def _check_classes(
    before: Sequence[Item],
    after: Sequence[Item],
    classes: Sequence[str],
    double: Mapping[bytes, Sequence[Item]],
) -> None:
    if lost := sorted({item.label for item in before} - {item.label for item in after}):
        pair = next(items for items in double.values() if any(item.label == lost[0] for item in items))
        raise InputError(
            f"each image of class {classes[lost[0]]!r} is in another class, too: {_pair(pair, classes)}; "
            f"keep each image in one class"
        )


def _pair(items: Sequence[Item], classes: Sequence[str]) -> str:
    first = items[0]
    other = next(item for item in items if item.label != first.label)
    if first.name == other.name:  # by two rows of a table
        return f"{first.name} as {classes[first.label]} and {classes[other.label]}"
    return f"{first.name} and {other.name}"
