"""A confirmation as it stands, for the caller and the command line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automl.base.options import STORAGE
from automl.base.summary import Summary, call
from automl.confirm.verdict import Verdict


@dataclass(frozen=True, kw_only=True, repr=False)
class ConfirmResult(Summary):
    """A confirmation as it stands. It shows itself in a few lines.

    Attributes:
        search: The name of the search.
        number: The number of the confirmation of this search, from 1 on.
        folder: The folder of the confirmation, with its study and checkpoints.
        verdict: The verdict.
        value: The content of `verdict.json`.
        storage: The folder or object store of the search.
        untracked: The number of trials that MLflow does not have in full.
        user_code: The names of user-defined code that exporting a model runs.
        logs: The traceback of each training that failed, by variant and seed. Of a command, it is the end of
            its output. It is empty if there is none.

    Example:
        After the example of `run_confirm`:

        >>> confirmed.number, confirmed.folder.name
        (1, 'confirm')
    """

    search: str
    number: int
    folder: Path
    verdict: Verdict
    value: dict[str, Any]
    storage: str = STORAGE
    untracked: int = 0
    user_code: Sequence[str] = ()
    logs: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that the command prints, as label and text."""
        number = f" (confirmation {self.number})" if self.number > 1 else ""
        kind = self.verdict.design.kind
        yield kind.done, f"{self.search}{number}: {self.verdict.final or 'no verdict'}"
        yield "verdict", self.verdict.headline
        yield "figures", self.verdict.figures
        yield "seeds", f"{len(self.verdict.used)} of the baseline and each {kind.finalist}"
        for warning in self.value["warnings"]:
            yield "warning", warning
        yield "folder", str(self.folder)
        storage = None if self.storage == STORAGE else self.storage
        if kind.opaque:
            if self.verdict.complete:
                yield "next", call("run_report", self.search, storage=storage)
            else:
                yield "next", call("run_referee", resume=self.search, storage=storage)
        elif not self.verdict.complete:
            yield "next", call("run_confirm", self.search, storage=storage)
        else:  # Without a winner, the plain backbone is deployed.
            model = "baseline" if self.value["winner"] is None else "best"
            trust = True if self.user_code else None
            options = {model: True, "search": self.search, "storage": storage, "trust": trust}
            yield "next", call("run_export", f"exports/{self.search}", **options)
