"""The overview of a dataset that `automl data` prints."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from automl.base.serialise import to_json
from automl.data.splits import SPLITS
from automl.data.tally import Tally


class Overview(SimpleNamespace):
    """Figures about a dataset, each an attribute and a key of `automl data --json`.

    Args:
        rows: Numbers by split, for each row of the printed table.
        how: Origin of each split.
        tally: Inputs that were left out, changed or duplicated.
        notes: Further printed lines by their labels. Empty texts are left out.
        heading: Name of what the rows are.
        figures: The figures.
    """

    def __init__(
        self,
        rows: Mapping[str, Mapping[str, int]],
        *,
        how: Mapping[str, str],
        tally: Tally | None = None,
        notes: Mapping[str, str] | None = None,
        heading: str = "",
        **figures: Any,
    ) -> None:
        super().__init__(**figures, how=how, tally=tally or Tally())
        self._heading, self._rows, self._notes = heading, rows, notes or {}

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command prints."""
        width = max(11, *(len(name) + 1 for name in self._rows))
        yield f"{self._heading:{width}}" + "".join(f"{split:>12}" for split in SPLITS)
        for name, counts in self._rows.items():
            yield f"{name:{width}}" + "".join(f"{counts[split]:>12,}" for split in SPLITS)
        for label, text in (*self.how.items(), *self._notes.items()):
            if text:
                yield f"{label:11} {text}" if label else text
        if self.tally:
            yield from str(self.tally).splitlines()

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {name: to_json(value) for name, value in vars(self).items() if not name.startswith("_")}
