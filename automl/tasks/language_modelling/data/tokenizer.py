"""Tokens of text: bytes, or sub-words by byte-level byte-pair encoding.

Source of the encoding: A. Radford et al., Language Models are Unsupervised Multitask Learners (2019), section
2.2. The last number of a vocabulary is the end of a document, which no text contains. The tokenizer of a
trained model has a number of its own for that.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.base.lazy import optional
from automl.tasks.language_modelling.config import BYTES

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


def read_tokenizer(path: str | Path) -> "TextTokenizer":
    """Return the tokenizer in a file `tokenizer.json`, beside which `config.json` may name the end of a text.

    Raises InputError if a file cannot be read.
    """
    try:
        content, config = Path(path).read_text("utf-8"), Path(path).with_name("config.json")
        end = json.loads(config.read_text("utf-8")).get("eos_token_id") if config.is_file() else None
        end = next(iter(end), None) if isinstance(end, list) else end
        if end is not None and (type(end) is not int or end < 0):
            raise InputError(f"eos_token_id in {config} must be 0 or more; got {end!r}. Mend the file")
        return TextTokenizer(content, end)
    except InputError:
        raise
    except Exception as error:  # The library raises the base class for what it cannot parse.
        raise InputError(
            f"the tokenizer {path} cannot be read ({error}); name a tokenizer.json of Hugging Face"
        ) from error


class TextTokenizer:
    """Converts texts to numbers and back.

    Args:
        content: the JSON of a tokenizer; empty for bytes.
        end: the number of the end of a document. None for one more than the tokenizer has.

    Attributes:
        content: the JSON.
        vocabulary: how many numbers there are.
        end: the number of the end of a document.
    """

    def __init__(self, content: str = "", end: int | None = None) -> None:
        self.content = content
        self._pairs = tokenizers.Tokenizer.from_str(content) if content else None
        if self._pairs is not None:
            self._pairs.encode_special_tokens = True  # A text that spells the end of a document is no end.
        count = BYTES - 1 if self._pairs is None else max(self._pairs.get_vocab().values()) + 1
        self.end = count if end is None else end
        self.vocabulary = max(count, self.end + 1)

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
