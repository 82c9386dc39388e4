import ast
import hashlib
import tarfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from torchvision.datasets import Imagenette

from attention.errors import InputError
from automl.data import download
from automl.data.download import Checksum
from automl.data.images import sources
from automl.data.images.sources import ADDRESS, CHECKSUMS, items


class Mirror(BaseHTTPRequestHandler):
    """Serves one archive, of which it may send a part only."""

    content = b""
    share = 1.0
    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        if self.path not in ("/mirror/imagewoof2-160.tgz", "/mirror/imagewoof-160.tgz"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[: int(len(self.content) * self.share)])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(
    tmp_path: Path, make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Mirror]]:
    root = make_folder(tmp_path / "d", {"train/n02086240": 2, "train/n02111889": 2, "val/n02111889": 1})
    with tarfile.open(tmp_path / "w.tgz", "w:gz") as file:
        file.add(root, "imagewoof2-160")
    Mirror.content, Mirror.share, Mirror.asked = (
        (tmp_path / "w.tgz").read_bytes(),
        1.0,
        [],
    )
    monkeypatch.setattr(sources, "CHECKSUMS", {})  # of the published archives
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AUTOML_MIRROR", f"http://127.0.0.1:{server.server_port}/mirror/")
    yield Mirror
    server.shutdown()
    server.server_close()


def test_downloaded_once(mirror: type[Mirror]) -> None:
    for _ in range(2):
        found = items("woof", None, 128)
        assert found.classes == ("Shih-Tzu", "Samoyed")
        assert (len(found.splits["train"]), len(found.splits["test"])) == (4, 1)
    assert mirror.asked == ["/mirror/imagewoof2-160.tgz"]


def test_the_first_version_has_a_name_of_its_own(mirror: type[Mirror], cache: Path) -> None:
    for source in ("woof1", "woof", "woof1"):
        assert items(source, None, 128).classes == ("Shih-Tzu", "Samoyed")
    assert mirror.asked == ["/mirror/imagewoof-160.tgz", "/mirror/imagewoof2-160.tgz"]
    folders = {path.name for path in (cache / "downloads").iterdir() if path.suffix != ".lock"}
    assert folders == {"imagewoof-160", "imagewoof2-160"}


@pytest.mark.parametrize("kind", ["size", "sha256", "md5", "first_md5"])
def test_a_published_checksum_is_compared(
    kind: str, mirror: type[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, int | str] = {
        "size": len(mirror.content),
        "sha256": hashlib.sha256(mirror.content).hexdigest(),
        "md5": hashlib.md5(mirror.content).hexdigest(),
        "first_md5": hashlib.md5(mirror.content[: 1 << 20]).hexdigest(),
    }
    published = {"imagewoof2-160.tgz": Checksum(**{kind: values[kind]})}  # type: ignore[arg-type]
    monkeypatch.setattr(sources, "CHECKSUMS", published)
    whole = mirror.content
    mirror.content = whole[:-1] if kind == "size" else whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(InputError, match=r"imagewoof2-160.tgz is not the archive that is known.*--data PATH"):
        items("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["imagewoof2-160.lock"]
    mirror.content = whole
    assert len(items("woof", None, 128).splits["train"]) == 4


def test_addresses_and_checksums_are_fastais() -> None:
    """fastai 2 lists the second versions; its list of version 1 had the others at the same address."""
    from fastai.data import download_checks
    from fastai.data.external import URLs

    published = ast.literal_eval(Path(download_checks.__file__).read_text())
    for source, name in (("nette", "IMAGENETTE"), ("woof", "IMAGEWOOF")):
        for size, suffix in ((128, "_160"), (224, "_320"), (256, "")):
            archive = f"{sources.archive_of(source, None, size)}.tgz"
            assert getattr(URLs, name + suffix) == ADDRESS + archive
            bytes_, first = published[ADDRESS + archive]
            assert CHECKSUMS[archive].size == bytes_
            assert CHECKSUMS[archive].first_md5 in (first, None)
    whole = {ADDRESS + name: known.md5 for name, known in CHECKSUMS.items() if known.md5}
    assert whole == dict(Imagenette._ARCHIVES.values())


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_interrupted_download_leaves_nothing(mirror: type[Mirror], share: float, cache: Path) -> None:
    mirror.share = share
    with pytest.raises(InputError, match=r"not received whole.*--data PATH"):
        items("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["imagewoof2-160.lock"]
    mirror.share = 1.0
    assert len(items("woof", None, 128).splits["train"]) == 4


def test_more_than_there_is_room_for(
    mirror: type[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_SHARE_OF_DISK", 0.0)
    with pytest.raises(InputError, match=r"larger than what may be used .*AUTOML_CACHE"):
        items("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["imagewoof2-160.lock"]


def test_credentials_of_a_mirror_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_MIRROR", "http://me:planted@127.0.0.1:1/mirror")
    with pytest.raises(InputError, match="may not hold a user or password") as raised:
        items("woof", None, 128)
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "size", "name"),
    [
        ("woof", 224, "imagewoof2-320.tgz"),
        ("woof", 225, "imagewoof2.tgz"),
        ("nette", 64, "imagenette2-160.tgz"),
        ("nette", 129, "imagenette2-320.tgz"),
        ("nette", 256, "imagenette2.tgz"),
        ("woof1", 225, "imagewoof.tgz"),
        ("nette1", 128, "imagenette-160.tgz"),
        ("nette1", 224, "imagenette-320.tgz"),
    ],
)
def test_the_size_decides_which_archive(mirror: type[Mirror], source: str, size: int, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} cannot be downloaded .*404.*--data PATH"):
        items(source, None, size)
    assert mirror.asked == [f"/mirror/{name}"]


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nonsense"])
def test_no_server(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_MIRROR", address)
    with pytest.raises(InputError, match="--data PATH"):
        items("nette", None, 128)
