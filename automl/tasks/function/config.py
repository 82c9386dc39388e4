"""Configuration of a training function."""

from collections.abc import Iterator
from dataclasses import dataclass

from search.config.sections import Model


@dataclass(frozen=True, kw_only=True)
class FunctionModel(Model):
    """The training function, which builds the model, and the placement.

    Attributes:
        backbone: The function, `file.py:train` or `package.module:train`.
    """

    def misuses(self) -> Iterator[str]:
        """Yield problems of its options: a function has none."""
        if self.options or self.weights:
            yield "a training function has no model.options and no model.weights; leave them out"
