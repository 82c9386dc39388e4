"""Tokens of text: bytes, or sub-words by byte-level byte-pair encoding.

Source of the encoding: A. Radford et al., Language Models are Unsupervised Multitask Learners (2019), section
2.2. The last number of a vocabulary is the end of a document, which no text contains.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from attention.errors import InputError
from backbones.extras import optional
from search.config.language_config import BYTES

tokenizers = optional("tokenizers", "text")


def train_pairs(texts: Iterable[bytes], vocabulary: int) -> str:
    """Return a tokenizer learned from `texts` in UTF-8, as JSON of Hugging Face's `tokenizers`.

    It has one number less than `vocabulary`. Raises InputError if the texts yield fewer.
    """
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pairs.train_from_iterator((text.decode() for text in texts), trainer)
    if (most := pairs.get_vocab_size() + 1) < vocabulary:
        raise InputError(
            f"data.vocabulary must be at most {most}, which is all that the training text yields; got "
            f"{vocabulary}. Choose a smaller one, or 0 for bytes"
        )
    return str(pairs.to_str())


class TextTokenizer:
    """Converts texts to numbers and back.

    Attributes:
        content: the JSON of `train_pairs`; empty for bytes.
        vocabulary: how many numbers there are.
        end: the number of the end of a document.
    """

    def __init__(self, content: str = "") -> None:
        self.content = content
        self._pairs = tokenizers.Tokenizer.from_str(content) if content else None
        self.vocabulary = BYTES if self._pairs is None else int(self._pairs.get_vocab_size()) + 1
        self.end = self.vocabulary - 1

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the numbers of each text in UTF-8, uint8 for bytes, else uint32."""
        if self._pairs is None:
            return [np.frombuffer(text, np.uint8) for text in texts]
        encodings = self._pairs.encode_batch_fast([text.decode() for text in texts], add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of numbers, with a replacement character for bytes that are not UTF-8.

        The end of a document is left out.
        """
        numbers = [int(token) for token in tokens if token != self.end]
        if self._pairs is None:
            return bytes(numbers).decode("utf-8", "replace")
        return str(self._pairs.decode(numbers, skip_special_tokens=False))
