"""Tokens of text: bytes, or sub-words by byte-level byte-pair encoding, packed into an Arrow file.

Source of the encoding: A. Radford et al., Language Models are Unsupervised Multitask Learners (2019), section
2.2. The last number of a vocabulary is the end of a document, which no text contains. The tokenizer of a
trained model has a number of its own for that.

The file has the columns of a `RecordFile`, bytes (int64) and tokens (uint16, or uint32 for a vocabulary above
65,536). The tokens of a document end with the number of its end. Documents are in the order of their splits,
and within a split in that of `order_subsets`. So the tokens of a split, and of any subset, are consecutive.
The vocabulary is learned from the whole training split, or that of a given tokenizer.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from automl.base.errors import InputError
from automl.base.lazy import optional
from automl.base.terminal import progress
from automl.base.units import pluralize
from automl.data import shared
from automl.data.arrow import write_columns
from automl.data.files import SIZE
from automl.data.records import File, RecordFile, Records
from automl.data.splits import SPLITS, order_subsets
from automl.data.tally import Tally
from automl.tasks.language_modelling import BYTES
from automl.tasks.language_modelling.data.documents import DocumentFile, cut, open_documents

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


FORMAT = 2  # Raise it when the format of the file or a tokenizer changes.
ENCODED = 1 << 24  # bytes of text that are encoded at once
PIECE = 1 << 16  # bytes; longer documents are encoded in pieces of this size, in parallel


class TokenFile(RecordFile):
    """An opened file of N documents.

    Attributes:
        tokenizer: the tokenizer that made the tokens.
        tokens: all of them, uint16 or uint32 `(T,)`, on the disk until they are read.
        starts: the first token of each document and the end, int64 `(N + 1,)`.
        bytes: number of bytes of each document's text, int64 `(N,)`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.tokenizer = TextTokenizer(self.about["tokenizer"], self.about["end"])
        column = self.table["tokens"].chunk(0)
        self.tokens: np.ndarray = column.values.to_numpy()
        self.starts: np.ndarray = column.offsets.to_numpy()
        self.bytes: np.ndarray = self.table["bytes"].to_numpy()
        if not (self.tokens[self.starts[1:] - 1] == self.tokenizer.end).all():
            raise ValueError("tokens are missing")  # Pages that a crash left unwritten are zero.

    def read_stream(self, rows: np.ndarray) -> np.ndarray:
        """Return the tokens of consecutive documents, `rows` ascending, not copied and read-only."""
        assert len(rows) == rows[-1] - rows[0] + 1, "the documents of a split are not consecutive"
        return self.tokens[self.starts[rows[0]] : self.starts[rows[-1] + 1]]

    @cached_property
    def tally(self) -> Tally:
        tally = Tally({kind: (count, names) for kind, (count, names) in self.about["left_out"].items()})
        tally.keep_copies("copies of another document", zip(self.names, map(bytes, self.keys), strict=True))
        return tally


class Documents(Records[File]):
    """Documents with their splits."""

    noun = "documents"


def open_tokens(path: str | Path, vocabulary: int, tokenizer: str = "") -> TokenFile:
    """Return the packed tokens of the documents at `path`.

    Args:
        path: a file or folder, see `find_text_files`.
        vocabulary: the number of different tokens; 0 for bytes.
        tokenizer: the path of a tokenizer, which is not trained.

    Raises:
        InputError: The documents or the tokenizer cannot be read, or yield a smaller vocabulary.
    """
    if (shared_set := shared.find_split(TokenFile, name_tokens(path, vocabulary, tokenizer))) is not None:
        return shared_set
    documents = open_documents(path)
    fixed = read_tokenizer(tokenizer) if tokenizer else None
    mark = "" if fixed is None else f" {fixed.end} {fixed.content}"
    key = f"text tokens {FORMAT} {vocabulary} {documents.path.name}{mark}".encode()
    needed = 2 * documents.path.stat().st_size
    return TokenFile.open_cached(
        key, lambda target: _write(target, documents, vocabulary, fixed), needed=needed
    )


def name_tokens(path: str | Path, vocabulary: int, tokenizer: str = "") -> str:
    """Return the name under which a search's storage keeps the tokens."""
    return f"text {vocabulary} {path}{' ' * bool(tokenizer)}{tokenizer}"


def _write(target: Path, documents: DocumentFile, vocabulary: int, fixed: TextTokenizer | None) -> str:
    records = Documents(documents)
    rows = [(own := records.rows(split))[order_subsets(documents.keys[own])] for split in SPLITS]
    texts = (piece for row in rows[0].tolist() for piece in cut(documents.text(row), PIECE))
    tokenizer = fixed or TextTokenizer(train_pairs(texts, vocabulary) if vocabulary else "")
    order = np.concatenate(rows).tolist()
    lengths, sizes = np.zeros((2, len(order)), np.int64)
    kind = np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.uint32
    end = np.array([tokenizer.end])
    with tempfile.TemporaryFile(dir=target.parent) as spool:
        for batch in _iterate_batches(documents, order):
            encoded = tokenizer.encode([piece for _, piece in batch])
            for (i, piece), tokens in zip(batch, encoded, strict=True):
                spool.write((tokens if piece else end).astype(kind).data)
                lengths[i] += len(tokens) if piece else 1
                sizes[i] += len(piece)
        spool.flush()
        columns: dict[str, pa.Array] = {
            "name": pa.array([documents.names[row] for row in order], pa.string()),
            "content": pa.array([documents.keys[row].tobytes() for row in order], pa.binary(SIZE)),
            "split": pa.array(documents.split[order], pa.int8()),
            "bytes": pa.array(sizes),
            "tokens": pa.LargeListArray.from_arrays(
                np.concatenate([[0], lengths.cumsum()]), np.memmap(spool, kind, mode="r")
            ),
        }
        about = {"tokenizer": tokenizer.content, "end": tokenizer.end, **documents.about}
        write_columns(target, columns, about)
    return f"packed {lengths.sum():,} tokens of {pluralize(len(order), 'documents')}"


def _iterate_batches(documents: DocumentFile, order: Sequence[int]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield pieces of texts with the positions of their documents, each ended by an empty piece."""
    batch: list[tuple[int, bytes]] = []
    held = 0
    with progress("packing documents", len(order)) as advance:
        for i, row in enumerate(order):
            for piece in (*cut(documents.text(row), PIECE), b""):
                batch.append((i, piece))
                held += len(piece)
                if held >= ENCODED:
                    yield batch
                    batch, held = [], 0
            advance(1)
    yield batch
