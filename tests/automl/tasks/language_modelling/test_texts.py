"""Test texts: files, splits, tokens and windows."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from automl.base.errors import InputError
from automl.data.splits import SPLITS
from automl.tasks.language_modelling.data import is_text
from automl.tasks.language_modelling.data.tokens import TextTokenizer, TokenFile, train_pairs
from automl.tasks.language_modelling.data.windows import TextWindows, open_text

pytestmark = pytest.mark.usefixtures("cache")

TEXTS = [f"# Page {i}\n\n" + f"Grüße, word{i % 7} und {i * i}.\n" * (3 + i % 5) for i in range(40)]


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    """Write files. Returns their folder."""
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write forty texts, a copy, and files that are not read."""
    texts = {f"{'ab'[i % 2]}/{i}.md": text for i, text in enumerate(TEXTS)}
    others = {
        ".git/config": "x",
        "a/photo.png": b"\x89PNG\0",
        "node_modules/x.js": "x",
        "latin.txt": b"\xfcber",
    }
    return write(tmp_path / "texts", {**texts, "copy.txt": TEXTS[3], "empty.txt": "", **others})


def decode_stream(windows: TextWindows, split: str) -> list[bytes]:
    """Return the documents of a split as its tokens have them."""
    stream = windows.file.read_stream(windows.rows(split))
    ends = np.flatnonzero(stream == windows.tokenizer.end)
    return [windows.tokenizer.decode(part).encode() for part in np.split(stream, ends + 1)[:-1]]


@pytest.mark.parametrize("vocabulary", [0, 300])
def test_each_document_is_in_one_split(folder: Path, vocabulary: int) -> None:
    windows = open_text(folder, vocabulary=vocabulary)
    documents = {split: decode_stream(windows, split) for split in SPLITS}
    assert sorted(text for split in SPLITS for text in documents[split]) == sorted(
        text.encode() for text in [*TEXTS, TEXTS[3]]
    )
    assert [len({*documents[split]}) for split in SPLITS] == [26, 6, 8]
    assert not {*documents["train"]} & {*documents["test"]}, "copies stay together"
    for split, texts in documents.items():
        stream = windows.file.read_stream(windows.rows(split))
        assert windows.bytes_per_token(split) == pytest.approx(sum(map(len, texts)) / len(stream))
    assert windows.vocabulary == (vocabulary or 257)
    if vocabulary:
        assert windows.tokenizer.content == train_pairs(documents["train"], vocabulary)
        assert 1.2 < windows.bytes_per_token("test") < 10


def test_lines_of_json_are_documents(folder: Path, tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"text": text, "id": "a"}) for text in [*TEXTS, TEXTS[3]]) + "\n\n"
    other = lines.replace('"text"', '"body"').replace(', "id": "a"', "")
    write(tmp_path, {"a.jsonl": lines, "b/c.jsonl.gz": gzip.compress(other.encode())})
    streams = [
        [decode_stream(open_text(path), split) for split in SPLITS]
        for path in (folder, tmp_path / "a.jsonl", tmp_path / "b")
    ]
    assert streams[0] == streams[1] == streams[2], "names have no effect"


@pytest.mark.parametrize("ending", ["/a.md", ".txt", ".jsonl"])
def test_folder_defines_splits(tmp_path: Path, ending: str) -> None:
    def content(name: str) -> str:
        lines = [f"{name} {i}" for i in range(12)]
        return (
            "\n".join(json.dumps({"text": line}) for line in lines)
            if ending == ".jsonl"
            else "\n\n".join(lines)
        )

    names = {"train": "train", "valid": "validation", "test": "test"}
    write(tmp_path, {f"{name}{ending}": content(name) for name in names} | {"README.rst": "About.\n"})
    windows = open_text(tmp_path)
    for name, split in names.items():
        documents = decode_stream(windows, split)
        assert all(text.startswith(name.encode()) for text in documents)
    assert windows.describe_splits() == dict.fromkeys(SPLITS, "the dataset's own")
    assert windows.tally.left_out == {"outside of the folders of splits": (1, ["README.rst"])}


def test_single_file_is_cut_into_pieces(tmp_path: Path) -> None:
    text = "\ufeff" + "\n".join(TEXTS)
    windows = open_text(write(tmp_path, {"book.txt": text}) / "book.txt")
    assert min(len(windows.rows(split)) for split in SPLITS) >= 3
    order = sorted(
        range(len(windows.file.names)), key=lambda row: int(windows.file.names[row].partition("#")[2])
    )
    starts = windows.file.starts
    pieces = [windows.tokenizer.decode(windows.file.tokens[starts[row] : starts[row + 1]]) for row in order]
    assert "".join(pieces) == text[1:]
    assert sum(piece.endswith("\n\n") for piece in pieces) > len(pieces) / 2


def test_long_documents_are_encoded_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"{i}.txt": text * 3 for i, text in enumerate(TEXTS)})
    whole = open_text(tmp_path)
    for name in ("PIECE", "ENCODED", "FORMAT"):
        monkeypatch.setattr(f"automl.tasks.language_modelling.data.tokens.{name}", 50)
    pieces = open_text(tmp_path)
    assert pieces.file.path != whole.file.path
    assert pieces.file.table.equals(whole.file.table)


@pytest.mark.parametrize("context", [1, 2, 7, 16, 600])
@pytest.mark.parametrize("split", SPLITS)
def test_windows_count_each_token_once(folder: Path, context: int, split: str) -> None:
    windows = open_text(folder, context=context)
    stream = windows.file.read_stream(windows.rows(split)).astype(np.int64)
    size = windows.size(split)
    tokens, marks = windows.batch(split, np.arange(size))
    assert tokens.shape == (size, context + 1)
    assert marks.shape == (size, context)
    scored = np.concatenate([window[1:][mark] for window, mark in zip(tokens, marks, strict=True)])
    assert (scored == stream[1 : 1 + len(scored)]).all()
    assert marks[0].all()
    if split == "train":
        assert marks.all()
        assert len(stream) - 1 - len(scored) < context
    else:
        assert len(scored) == len(stream) - 1
        assert not marks[1:, : context - max(1, context // 2)].any()
    order = np.random.default_rng(0).permutation(size)[:5]
    assert (windows.batch(split, order)[0] == tokens[order]).all()


def test_subset_is_a_prefix_of_a_larger_subset(folder: Path) -> None:
    some, more, whole = (open_text(folder, subset=subset) for subset in (0.3, 0.6, 1.0))
    for split in ("train", "validation"):
        streams = [w.file.read_stream(w.rows(split)) for w in (some, more, whole)]
        for shorter, longer in pairwise(streams):
            assert len(shorter) < len(longer)
            assert (shorter == longer[: len(shorter)]).all()
    assert (some.rows("test") == whole.rows("test")).all()


def test_unwritten_tokens_are_detected(folder: Path) -> None:
    file = open_text(folder).file
    content = bytearray(file.path.read_bytes())
    start = content.index(file.tokens[:50].tobytes())
    content[start : start + file.tokens.nbytes // 2] = bytes(file.tokens.nbytes // 2)
    copy = file.path.with_name("copy.arrow")
    copy.write_bytes(content)
    assert TokenFile.is_sound(file.path)
    assert not TokenFile.is_sound(copy)


@pytest.mark.parametrize(
    ("files", "path", "expected"),
    [
        ({"a.txt": "x"}, "a.txt", True),
        ({"a.jsonl.gz": b"\0"}, "a.jsonl.gz", True),
        ({"a.csv": "x"}, "a.csv", False),
        ({}, "missing.txt", False),
        ({"a.md": "x", "docs/b.rst": "x", "c.png": b"x"}, ".", True),
        ({"a.txt": "x", "cat/c.png": b"x"}, ".", False),
        ({".git/a.txt": "x"}, ".", False),
    ],
)
def test_texts_are_known(tmp_path: Path, files: dict[str, str | bytes], path: str, expected: bool) -> None:
    assert is_text(write(tmp_path, files) / path) == expected


TEXT = "\n\n".join(f"Line {i}." for i in range(100))


@pytest.mark.parametrize(
    ("files", "path", "options", "message"),
    [
        ({}, "no", {}, "there is no file or folder .*; pass --data PATH with one that exists$"),
        ({"poems.txt": TEXT}, "Poems.txt", {}, r"with one that exists\. Did you mean .*/poems\.txt\?$"),
        ({"a.txt": "x\n" * 9000 + "\0"}, "a.txt", {}, "a.txt must be text; byte 18000 is zero, so it is"),
        ({"a.txt": b"a" * 2**20 + b"\xc3"}, "a.txt", {}, "it is not at byte 1048576"),
        ({"a.txt": TEXT}, "a.txt", {"context": 600}, r"data.context must be at most 2\d\d, since the \w+"),
        ({"a.jsonl.gz": b"no"}, ".", {}, "a.jsonl.gz cannot be read .*; restore it or remove it"),
    ],
)
def test_unusable_texts_are_rejected(
    tmp_path: Path, files: dict[str, str | bytes], path: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(InputError, match=message):
        open_text(write(tmp_path / "data", files) / path, **options)


def test_numbers_become_text_again() -> None:
    for tokenizer in (TextTokenizer(), TextTokenizer(train_pairs([b"aaaa"], 258))):
        (tokens,) = tokenizer.encode(["Grüße, 漢!".encode()])
        assert tokenizer.decode([*tokens, tokenizer.end]) == "Grüße, 漢!"
        assert tokenizer.decode(tokens[:3]) == "Gr\ufffd"


def test_tokenizer_of_a_model_is_not_trained(folder: Path, tmp_path: Path) -> None:
    model = write(tmp_path / "model", {"config.json": '{"eos_token_id": [260, 7]}'})
    trained = tokenizers.Tokenizer.from_str(train_pairs([TEXTS[1].encode()], 261))
    trained.add_special_tokens(["<|end|>"])
    trained.save(str(model / "tokenizer.json"))
    write(folder, {"end.txt": "Not the <|end|> of a document."})
    windows = open_text(folder, tokenizer=str(model / "tokenizer.json"))
    assert (windows.tokenizer.end, windows.vocabulary) == (260, 261)
    documents = [text for split in SPLITS for text in decode_stream(windows, split)]
    assert sorted(documents) == sorted(
        text.encode() for text in [*TEXTS, TEXTS[3], "Not the <|end|> of a document."]
    )
