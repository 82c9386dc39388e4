"""Detect classes that are so unequal that accuracy hardly measures the rare ones."""

from collections.abc import Mapping

from automl.base.escape import printable
from search.class_statistics import is_imbalanced

OPTIONS = {"metric": "--metric balanced_accuracy", "class_weights": "--class-weights balanced"}


def describe_imbalance(counts: Mapping[str, int], *, options: Mapping[str, object] | None = None) -> str:
    """Return a line about imbalanced classes of the training data and options for them.

    Classes are imbalanced if one has more than RATIO times as many inputs as another. Classes without inputs
    are ignored. The line is empty if the classes are balanced or no option is left to suggest.

    Args:
        counts: number of training inputs of each class.
        options: values of OPTIONS; those that are not None are not suggested again.
    """
    counts = {name: count for name, count in counts.items() if count}
    suggestions = [text for key, text in OPTIONS.items() if (options or {}).get(key) is None]
    if not suggestions or not is_imbalanced(counts.values()):
        return ""
    most, least = (pick(counts, key=lambda name: counts[name]) for pick in (max, min))
    return (
        f"classes are imbalanced, {counts[most]:,} of {printable(most)} to {counts[least]:,} of "
        f"{printable(least)} in training: "
        f"consider {' '.join(suggestions)}"
    )
