"""Summarise texts: documents, bytes and tokens of each split, duplicates, files left out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from automl.data.splits import SPLITS
from automl.data.tally import Tally
from automl.tasks.language_modelling.data.windows import open_text


@dataclass(frozen=True, kw_only=True)
class TextOverview:
    """Figures that `automl data` prints about texts.

    Attributes:
        documents: number of documents of each split.
        bytes: size of their texts.
        tokens: number of tokens, if each byte is one.
        how: how each split was made.
        tally: documents that were left out or duplicated.
    """

    documents: Mapping[str, int]
    bytes: Mapping[str, int]
    tokens: Mapping[str, int]
    how: Mapping[str, str]
    tally: Tally

    def lines(self) -> Iterator[str]:
        yield f"{'':11}" + "".join(f"{split:>14}" for split in SPLITS)
        for name in ("documents", "bytes", "tokens"):
            yield f"{name:11}" + "".join(f"{getattr(self, name)[split]:>14,}" for split in SPLITS)
        for split, how in self.how.items():
            yield f"{split:11} {how}"
        yield f"{'context':11} at most {min(self.tokens.values()) - 1:,} tokens, if each byte is one"
        if self.tally:
            yield str(self.tally)


def summarise_text(path: str | Path) -> TextOverview:
    """Return the overview of a file or folder. Raises InputError like `open_text`."""
    windows = open_text(path)
    rows = {split: windows.rows(split) for split in SPLITS}
    return TextOverview(
        documents={split: len(rows[split]) for split in SPLITS},
        bytes={split: int(windows.file.bytes[rows[split]].sum()) for split in SPLITS},
        tokens={split: len(windows.file.read_stream(rows[split])) for split in SPLITS},
        how=windows.describe_splits(),
        tally=windows.tally,
    )
