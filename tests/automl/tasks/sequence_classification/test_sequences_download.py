import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from automl.base.errors import InputError
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


@pytest.mark.parametrize("change", ["another", "cut short", "no archive"])
def test_other_archives_are_refused(change: str, mirror: type[Mirror], cache: Path) -> None:
    whole = mirror.files[NAME]
    if change == "another":
        mirror.files[NAME] = whole[:-1] + bytes([whole[-1] ^ 1])
    elif change == "cut short":
        mirror.fraction = 0.5
    else:
        mirror.files[NAME] = b"<html>Sign in</html>"
    hashes = r"the SHA-256 [0-9a-f]{64}, not [0-9a-f]{64}"
    message = rf"smartphones.zip is not the expected file: its \d+ bytes have {hashes}; .*--data PATH"
    files = ["ucihar.lock"]
    if change == "cut short":
        message = rf"was not received completely \(\d+ of {len(whole)} bytes\); .*--data PATH"
        files += [f"ucihar.part-{NAME}{end}" for end in ("", ".json")]
    with pytest.raises(InputError, match=message):
        open_sequences("ucihar", "train")
    assert sorted(path.name for path in (cache / "downloads").iterdir()) == files
    mirror.files[NAME], mirror.fraction = whole, 1.0
    assert len(open_sequences("ucihar", "train")) > 0


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_MIRROR", "http://127.0.0.1:1")
    with pytest.raises(InputError, match=r"cannot be downloaded .*--data PATH"):
        open_sequences("ucihar", "train")
