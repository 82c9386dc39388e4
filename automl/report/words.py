"""Hyperparameters in words: `adamw.learning_rate` is `learning rate (adamw)`."""

import re
from functools import cache

_SHORT = {"ks": "kernel size", "embed_dim": "width", "mlp": "MLP"}


@cache
def words(name: str) -> str:
    """Return the name of a hyperparameter in words. Names of user-defined spaces only lose underscores."""
    prefix, _, rest = name.rpartition(".")
    match = re.fullmatch(r"(.*?)_?(\d+)", rest)
    stem, module = (match[1], match[2]) if match and match[1] else (rest, "")
    of = [prefix] if prefix else []
    if module and stem.startswith("decomposed_"):
        stem, of = stem.removeprefix("decomposed_"), ["decomposed"]
    text = _SHORT.get(stem, stem.replace("_", " "))
    if module:
        text += f" of module {module}"
    return text + (f" ({', '.join(of)})" if of else "")


def value(thing: object) -> str:
    """Return a value of a hyperparameter as text."""
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    return f"{thing:.4g}" if isinstance(thing, float) else str(thing)
