import tarfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from attention.errors import InputError
from automl.data import download
from automl.data.images.sources import items


class Mirror(BaseHTTPRequestHandler):
    """Serves one archive, of which it may send a part only."""

    content = b""
    share = 1.0
    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        if self.path != "/mirror/imagewoof2-160.tgz":
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


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_interrupted_download_leaves_nothing(mirror: type[Mirror], share: float, cache: Path) -> None:
    mirror.share = share
    with pytest.raises(InputError, match=r"not received whole.*--data PATH"):
        items("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["IMAGEWOOF_160.lock"]
    mirror.share = 1.0
    assert len(items("woof", None, 128).splits["train"]) == 4


def test_more_than_there_is_room_for(
    mirror: type[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_SHARE_OF_DISK", 0.0)
    with pytest.raises(InputError, match=r"larger than what may be used .*AUTOML_CACHE"):
        items("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["IMAGEWOOF_160.lock"]


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
