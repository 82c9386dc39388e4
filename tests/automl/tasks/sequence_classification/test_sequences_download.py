import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from automl.data.download import Checksum
from automl.tasks.sequence_classification.data import open_sequences, ucihar
from tests.helpers.fake_ucihar import write_zip
from tests.helpers.services import Mirror, serve_mirror

pytestmark = pytest.mark.usefixtures("cache")

NAME = "human+activity+recognition+using+smartphones.zip"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Mirror]]:
    """Serve a small archive whose hash is the expected one."""
    content = write_zip(tmp_path / "a.zip", nested=True).read_bytes()
    dataset, file = ucihar.DATASETS[0], ucihar.DATASETS[0].files[0]
    small = replace(file, checksum=Checksum(sha256=hashlib.sha256(content).hexdigest()))
    monkeypatch.setattr(ucihar, "DATASETS", [replace(dataset, files=[small])])
    with serve_mirror({NAME: content}) as address:
        monkeypatch.setenv("AUTOML_MIRROR", address)
        yield Mirror


def test_the_archive_is_downloaded_once(mirror: type[Mirror]) -> None:
    file = ucihar.DATASETS[0].files[0]
    assert file.name == NAME
    assert file.size == 61_005_872
    assert len(bytes.fromhex(file.checksum.sha256 or "")) == 32
    for split in ("train", "test"):
        assert len(open_sequences("ucihar", split)) > 0
    assert mirror.asked == [f"/mirror/{NAME}"]
