"""Storage on a local disk and on a real S3 server."""

import pickle
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from automl.base.errors import InputError
from automl.storage.storage import Storage
from tests.helpers.services import ObjectStore, Quiet, serving


def test_file_is_written_read_listed_and_removed(storage: Storage, tmp_path: Path) -> None:
    assert storage.files() == {}
    assert storage.folders() == []
    assert storage.total() == 0
    folder = storage / "one"
    folder.write("a", b"first")
    folder.write("a", b"second")
    folder.write("below/b c", bytes(5 << 20))
    assert folder.read("a") == b"second"
    assert (folder.exists("a"), folder.exists("b"), folder.exists("below")) == (True, False, False)
    assert (folder.size("a"), folder.size("b")) == (6, None)
    assert folder.files().keys() == {"a", "below/b c"}
    assert storage.files().keys() == {"one/a", "one/below/b c"}
    assert storage.folders() == ["one"]
    assert storage.total() == folder.total() == 6 + (5 << 20)
    with folder.open("below/b c") as file:
        file.seek(-1, 2)
        assert file.read() == b"\0"
    folder.fetch("a", tmp_path / "here" / "a")
    assert (tmp_path / "here" / "a").read_bytes() == b"second"
    folder.remove("a")
    assert folder.files().keys() == {"below/b c"}
    storage.clear()
    assert not storage.exists("one/below/b c")


def test_content_is_stamped_consistent_and_pickled(storage: Storage, tmp_path: Path) -> None:
    storage.write("a", b"1")
    before = storage.files()["a"]
    assert storage.files()["a"] == before
    storage.write("a", b"22")
    assert storage.files()["a"] != before
    content = bytes(range(256)) * (20 << 12)  # 20 MiB, more than is copied at once
    (tmp_path / "large").write_bytes(content)
    storage.send(tmp_path / "large", "large")
    storage.fetch("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    contents = [bytes([number]) * (size << 20) for number, size in enumerate((3, 1, 5, 3))]
    storage.write("a", contents[0])
    ended = threading.Event()

    def write() -> None:
        for content in 4 * contents:
            storage.write("a", content)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        assert storage.read("a") in contents
    writer.join()
    storage.write("a", b"1")
    assert pickle.loads(pickle.dumps(storage)).read("a") == b"1"
    assert Storage(storage.address) == storage


@pytest.mark.parametrize("act", ["read", "open", "remove", "fetch"])
def test_missing_file_raises(act: str, storage: Storage, tmp_path: Path) -> None:
    storage.write("other", b"")
    more = [tmp_path / "here"] if act == "fetch" else []
    with pytest.raises(FileNotFoundError):
        getattr(storage, act)("missing", *more)
    assert not (tmp_path / "here").exists()


def test_failed_write_keeps_the_old_file(storage: Storage) -> None:
    storage.write("a", b"good")

    def fail() -> None:
        with storage.writing("a") as file:
            file.write(b"ba")
            raise ValueError("midway")

    with pytest.raises(ValueError, match="midway"):
        fail()
    assert storage.read("a") == b"good"
    assert storage.files().keys() == {"a"}


def test_paths_and_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Storage("searches").local == tmp_path / "searches"
    assert Storage(f"file://{tmp_path}/a%20b").local == tmp_path / "a b"
    assert (Storage("searches") / "one").address == str(tmp_path / "searches" / "one")
    far = Storage("s3://bucket/searches/?region=us-east-1") / "one"
    assert far.address == "s3://bucket/searches/one?region=us-east-1"
    assert far.local is None
    assert far.filesystem[1] == "bucket/searches/one"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ftp://host/searches", r"ftp://host/searches cannot be used .*s3://, gs://"),
        ("s3:///searches", "has no bucket or host"),
        ("s3://key:hidden@bucket/searches", "must not contain credentials.*AWS_ACCESS_KEY_ID"),
        ("s3://bucket/searches?secret_key=hidden", "must not contain credentials"),
        ("s3://bucket/searches?nonsense=1", "cannot be used"),
    ],
)
def test_invalid_address_is_rejected(address: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        Storage(address)
    assert "hidden" not in str(error.value)


class Refusing(Quiet, BaseHTTPRequestHandler):
    """Server that answers each request with 503, as a busy store does."""

    asked = 0

    def do_GET(self) -> None:
        Refusing.asked += 1
        self.send_response(503)
        self.end_headers()


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_store_that_refuses_is_asked_again(
    attempts: int, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    Refusing.asked = 0
    with serving(Refusing) as address:
        host = address.removeprefix("http://")
        folder = Storage(f"s3://automl/searches?endpoint_override={host}&scheme=http", attempts=attempts)
        with pytest.raises(OSError, match="503"):
            folder.files()
    assert Refusing.asked == attempts
    assert folder == Storage(folder.address)
