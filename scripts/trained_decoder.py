"""Train a decoder of eight layers on the sources of Python's standard library, for `make language-findings`.

The text is on every machine that has Python: all modules without tests and installed packages, each a
document. A file whose path has a hash of 0 or 1 modulo 40 is for validation or test. Both are cut off, since
each trial reads them.

    python scripts/trained_decoder.py

Takes about half an hour on one core, and writes the training into `searches/library-decoder`.
"""

import hashlib
import sysconfig
import zlib
from pathlib import Path

import automl
from automl.tasks.language_modelling import LanguageData, LanguageModel, LanguageTraining
from automl.tasks.language_modelling.space import TASK
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE

STORAGE = "searches"
NAME = "library-decoder"
TESTS = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
LENGTHS = {"valid": 16_000, "test": 24_000}  # [bytes] at which splits end
CONTEXT = 128
SHAPE = {"depth": 8, "width": 192, "heads": 6}


def collect_library(folder: Path, train_bytes: int | None = None) -> dict[str, str]:
    """Copy the standard library's modules into the splits of a folder, in the order of a hash of their paths.

    Args:
        folder: The folder, which gets `train`, `valid` and `test`.
        train_bytes: The length at which the training split ends. By default it has all other modules.

    Returns:
        The SHA-256 digest of each module's text by its path.
    """
    root = Path(sysconfig.get_path("stdlib"))
    modules = [p for p in root.rglob("*.py") if not TESTS & set(p.relative_to(root).parts)]
    ends = {**LENGTHS, "train": train_bytes}
    lengths, digests = dict.fromkeys(ends, 0), {}
    for module in sorted(modules, key=lambda p: zlib.crc32(str(p.relative_to(root)).encode())):
        name, content = str(module.relative_to(root)), module.read_bytes()
        split = {0: "valid", 1: "test"}.get(zlib.crc32(name.encode()) % 40, "train")
        end = ends[split]
        if end is not None and lengths[split] >= end:
            continue
        content = content if end is None else content[: end - lengths[split]]
        lengths[split] += len(content)
        digests[f"{split}/{name}"] = hashlib.sha256(content).hexdigest()
        target = folder / split / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return digests


def train_decoder() -> Path:
    """Train the decoder if it is missing. Return its checkpoint."""
    checkpoint = Path(STORAGE) / NAME / CHECKPOINT_FILE
    if not checkpoint.exists():
        text = Path(STORAGE) / "library-text"
        collect_library(text)
        automl.run_train(
            TrialConfig(
                task=TASK,
                data=LanguageData(path=str(text.resolve()), context=CONTEXT, subset=0.36),
                model=LanguageModel(options=SHAPE),
                training=LanguageTraining(epochs=1, batch_size=16),
                metric="bits_per_byte",
            ),
            storage=STORAGE,
            name=NAME,
            tell=lambda task, metrics: print(metrics, flush=True),
        )
    return checkpoint


if __name__ == "__main__":
    path = train_decoder()
    print(path, hashlib.sha256(path.read_bytes()).hexdigest())
