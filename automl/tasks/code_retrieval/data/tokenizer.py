"""Sub-tokens of code and of queries, by byte-pair encoding (arXiv 1508.07909), and padded batches of them.

`getHTTPServer_2` becomes `get http server 2` before pairs are merged, so that a query matches the name. All
steps are in the JSON of Hugging Face's `tokenizers`, which returns the same numbers without this project.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from automl.base.errors import InputError
from automl.base.lazy import optional

PADDING = 0


class Ragged:
    """Rows of different lengths.

    Attributes:
        values: all rows in sequence, int32.
        starts: the first value of each row and the end, int64 `(N + 1,)`.
        lengths: number of values of each row, int64 `(N,)`.
    """

    def __init__(self, values: np.ndarray, starts: np.ndarray) -> None:
        self.values, self.starts = values, starts
        self.lengths = np.diff(starts)

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        starts = np.cumsum([0, *map(len, rows)])
        return cls(np.array([number for row in rows for number in row], np.int32), starts)

    def pad(self, rows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens int64 `(B, T)` and mask bool `(B, T)` of `rows` `(B,)`, cut at `length`."""
        lengths = np.minimum(self.lengths[rows], length)
        positions = np.arange(max(1, lengths.max(initial=0)))
        mask = positions < lengths[:, None]
        tokens = np.full(mask.shape, PADDING, np.int64)
        tokens[mask] = self.values[(self.starts[rows][:, None] + positions)[mask]]
        return tokens, mask


tokenizers = optional("tokenizers", "code")

UNKNOWN = PADDING + 1
SPECIAL = ["[PAD]", "[UNK]"]

# Between a small letter or digit and a capital, and before the last of several capitals, which begins a word.
_HUMPS = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
_WORDS = r"[^\W\d_]+|\d|[^\w\s]"  # a word, a digit, or a sign


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> str:
    """Return merges learned from `texts`, as JSON, for at most `vocabulary` sub-tokens with special ones."""
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=SPECIAL[UNKNOWN]))
    normalizers, words = tokenizers.normalizers, tokenizers.Regex(_WORDS)
    humps = normalizers.Replace(tokenizers.Regex(_HUMPS), " ")
    encoder.normalizer = normalizers.Sequence([normalizers.NFKC(), humps, normalizers.Lowercase()])
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.Split(words, "removed", invert=True)
    encoder.train_from_iterator(
        texts,
        tokenizers.trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False),
    )
    return str(encoder.to_str())


class Tokenizer:
    """Converts texts to numbers. `content` is the JSON of `train_tokenizer`."""

    def __init__(self, content: str) -> None:
        self.content = content
        self._encoder = tokenizers.Tokenizer.from_str(content)

    def __len__(self) -> int:
        return int(self._encoder.get_vocab_size())

    def token_ids(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """Return at most `length` numbers of each text."""
        return [encoding.ids[:length] for encoding in self._encoder.encode_batch(list(texts))]

    def names(self, ids: Iterable[int]) -> list[str]:
        """Return the sub-tokens with these numbers as text."""
        return [self._encoder.id_to_token(int(i)) for i in ids]

    def encode(self, texts: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers int64 `(B, T)`, cut to `length`, and a mask, bool `(B, T)`, False at padding."""
        return Ragged.from_rows(self.token_ids(texts, length)).pad(np.arange(len(texts)), length)

    def check_known(self, query: str) -> None:
        """Raise InputError for a query without a known sub-token."""
        if not set(self._encoder.encode(query).ids) - {UNKNOWN}:
            raise InputError(f"the model knows no word of the query {query!r}; choose other words")
