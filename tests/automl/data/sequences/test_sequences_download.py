import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import pytest
from fake_ucihar import write_zip

from attention import InputError
from automl.data.sequences import open_sequences, sources, ucihar

NAME = "/mirror/human+activity+recognition+using+smartphones.zip"


class Mirror(BaseHTTPRequestHandler):
    """Serves what UCI does, of which it may send a part only."""

    content = b""
    share = 1.0
    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(unquote(self.path))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[: int(len(self.content) * self.share)])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Mirror]]:
    """Its archive is the one that is known."""
    Mirror.content, Mirror.share, Mirror.asked = (
        write_zip(tmp_path / "a.zip", nested=True).read_bytes(),
        1.0,
        [],
    )
    known = sources.Source(
        name="ucihar", about="", address=ucihar.ADDRESS, sha256=hashlib.sha256(Mirror.content).hexdigest()
    )
    monkeypatch.setitem(sources.SOURCES, "ucihar", known)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AUTOML_MIRROR", f"http://127.0.0.1:{server.server_port}/mirror/")
    yield Mirror
    server.shutdown()
    server.server_close()


def test_the_known_archive() -> None:
    assert sources.SOURCES["ucihar"].address == ucihar.ADDRESS
    assert sources.SOURCES["ucihar"].sha256 == ucihar.SHA256
    assert len(bytes.fromhex(ucihar.SHA256)) == 32


def test_downloaded_once(mirror: type[Mirror]) -> None:
    for split in ("train", "test"):
        assert len(open_sequences("ucihar", split)) > 0
    assert mirror.asked == [NAME]


@pytest.mark.parametrize("change", ["another", "cut short", "no archive"])
def test_another_archive_is_refused(change: str, mirror: type[Mirror], cache: Path) -> None:
    whole = mirror.content
    if change == "another":
        mirror.content = whole[:-1] + bytes([whole[-1] ^ 1])
    elif change == "cut short":
        mirror.share = 0.5
    else:
        mirror.content = b"<html>Sign in</html>"
    hashes = r"the SHA-256 [0-9a-f]{64}, not [0-9a-f]{64}"
    why = rf"smartphones.zip is not the archive that is known: its \d+ bytes have {hashes}; .*--data PATH"
    left = ["ucihar.lock"]
    if change == "cut short":
        why = rf"was not received whole \(\d+ of {len(whole)} bytes\); .*--data PATH"
        left += [f"ucihar.part-{NAME.rpartition('/')[2]}{end}" for end in ("", ".json")]
    with pytest.raises(InputError, match=why):
        open_sequences("ucihar", "train")
    assert sorted(path.name for path in (cache / "downloads").iterdir()) == left
    mirror.content, mirror.share = whole, 1.0
    assert len(open_sequences("ucihar", "train")) > 0


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_MIRROR", "http://127.0.0.1:1")
    with pytest.raises(InputError, match=r"cannot be downloaded .*--data PATH"):
        open_sequences("ucihar", "train")
