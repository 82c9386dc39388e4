"""Whether the classes of a dataset are so unequal that accuracy says little of the rare ones."""

from collections.abc import Mapping

from automl.config.escape import printable
from search.class_statistics import is_imbalanced

OPTIONS = {"metric": "--metric balanced_accuracy", "class_weights": "--class-weights balanced"}


def describe_imbalance(counts: Mapping[str, int], *, given: Mapping[str, object] | None = None) -> str:
    """A line on classes of more than RATIO times as many training inputs as others, with what to do.

    counts: of each class; those without inputs do not count. given: the options of OPTIONS that are not None
    are not named again. Empty where the classes are about equal, or nothing is left to say.
    """
    there = {name: count for name, count in counts.items() if count}
    given = given or {}
    options = [option for key, option in OPTIONS.items() if given.get(key) is None]
    if not options or not is_imbalanced(there.values()):
        return ""
    most, least = (pick(there, key=lambda name: there[name]) for pick in (max, min))
    return (
        f"classes are imbalanced, {there[most]:,} of {printable(most)} to {there[least]:,} of "
        f"{printable(least)} in training: "
        f"consider {' '.join(options)}"
    )
