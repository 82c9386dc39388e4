"""Sub-tokens of code and of queries, by byte-pair encoding (arXiv 1508.07909).

`getHTTPServer_2` becomes `get http server 2` before pairs are merged, so that a query meets the name. All of
it is in the JSON of Hugging Face's `tokenizers`, which gives the same numbers without this project.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from attention.errors import InputError
from automl.data.code.ragged import PADDING, pad_rows
from backbones.extras import optional

tokenizers = optional("tokenizers", "code")

UNKNOWN = PADDING + 1
SPECIAL = ["[PAD]", "[UNK]"]

# Between a small letter or digit and a capital, and before the last of several capitals that begins a word.
_HUMPS = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
_WORDS = r"[^\W\d_]+|\d|[^\w\s]"  # a word, a digit, or a sign


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> str:
    """Merges learned from `texts`, as JSON. vocabulary: the most sub-tokens, the special ones among them."""
    encoder = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=SPECIAL[UNKNOWN]))
    encoder.normalizer, encoder.pre_tokenizer = _normalizer(), _splitter()
    encoder.train_from_iterator(
        texts,
        tokenizers.trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False),
    )
    return str(encoder.to_str())


def split_words(text: str) -> list[str]:
    """The words, digits and signs within which pairs are merged, in their order."""
    return [word for word, _ in _splitter().pre_tokenize_str(_normalizer().normalize_str(text))]


def _normalizer() -> Any:
    normalizers = tokenizers.normalizers
    humps = normalizers.Replace(tokenizers.Regex(_HUMPS), " ")
    return normalizers.Sequence([normalizers.NFKC(), humps, normalizers.Lowercase()])


def _splitter() -> Any:
    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(_WORDS), "removed", invert=True)


class Tokenizer:
    """From texts to numbers. content: the JSON that `train_tokenizer` made."""

    def __init__(self, content: str) -> None:
        self.content = content
        self._encoder = tokenizers.Tokenizer.from_str(content)

    def __len__(self) -> int:
        return int(self._encoder.get_vocab_size())

    def token_ids(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """Of each text, at most `length`."""
        return [encoding.ids[:length] for encoding in self._encoder.encode_batch(list(texts))]

    def encode(self, texts: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers int64 (B, T) and a mask, bool (B, T), which is False at padding.

        T is the longest of these texts, and at most `length`: what comes after that is left out.
        """
        return pad_rows(self.token_ids(texts, length), length)

    def check_known(self, query: str) -> None:
        """Raises InputError for a query without a single known sub-token."""
        if not set(self._encoder.encode(query).ids) - {UNKNOWN}:
            raise InputError(f"the model knows no word of the query {query!r}; use other words")
