import ast
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torchvision.datasets import Imagenette

import automl.data.download
from automl.base.errors import InputError
from automl.data import download
from automl.data.download import Checksum, PublishedDataset, Remote, published_datasets
from automl.tasks.image_classification.data import sources as image_sources
from automl.tasks.image_classification.data.sources import DATASETS, get_archive_name, list_images
from search.space import SPACES
from tests.helpers.services import Mirror, serve_mirror

WOOF = "imagewoof2-160.tgz"


def publish(monkeypatch: pytest.MonkeyPatch, checksum: Checksum) -> None:
    """Let all published archives have this checksum."""
    changed = [
        replace(dataset, files=[replace(file, checksum=checksum) for file in dataset.files])
        for dataset in DATASETS
    ]
    monkeypatch.setattr(image_sources, "DATASETS", changed)


@pytest.fixture
def mirror(
    tmp_path: Path, make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Mirror]]:
    root = make_folder(tmp_path / "d", {"train/n02086240": 2, "train/n02111889": 2, "val/n02111889": 1})
    with tarfile.open(tmp_path / "w.tgz", "w:gz") as file:
        file.add(root, "imagewoof2-160")
    content = (tmp_path / "w.tgz").read_bytes()
    publish(monkeypatch, Checksum())
    with serve_mirror({WOOF: content, "imagewoof-160.tgz": content}) as address:
        monkeypatch.setenv("AUTOML_MIRROR", address)
        yield Mirror


def test_downloaded_once(mirror: type[Mirror]) -> None:
    for _ in range(2):
        listing = list_images("woof", None, 128)
        assert listing.classes == ("Shih-Tzu", "Samoyed")
        assert (len(listing.splits["train"]), len(listing.splits["test"])) == (4, 1)
    assert mirror.asked == ["/mirror/imagewoof2-160.tgz"]


def test_first_version_has_its_own_folder(mirror: type[Mirror], cache: Path) -> None:
    for source in ("woof1", "woof", "woof1"):
        assert list_images(source, None, 128).classes == ("Shih-Tzu", "Samoyed")
    assert mirror.asked == ["/mirror/imagewoof-160.tgz", "/mirror/imagewoof2-160.tgz"]
    folders = {path.name for path in (cache / "downloads").iterdir() if path.suffix != ".lock"}
    assert folders == {"imagewoof-160", "imagewoof2-160"}


@pytest.mark.parametrize("kind", ["size", "sha256", "md5", "first_md5"])
def test_published_checksum_is_checked(
    kind: str, mirror: type[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, int | str] = {
        "size": len(whole := mirror.files[WOOF]),
        "sha256": hashlib.sha256(whole).hexdigest(),
        "md5": hashlib.md5(whole).hexdigest(),
        "first_md5": hashlib.md5(whole[: 1 << 20]).hexdigest(),
    }
    publish(monkeypatch, Checksum(**{kind: values[kind]}))  # type: ignore[arg-type]
    mirror.files[WOOF] = whole[:-1] if kind == "size" else whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(InputError, match=r"imagewoof2-160.tgz is not the expected file.*--data PATH"):
        list_images("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["imagewoof2-160.lock"]
    mirror.files[WOOF] = whole
    assert len(list_images("woof", None, 128).splits["train"]) == 4


def test_addresses_and_checksums_match_fastai() -> None:
    """fastai 2 lists the second versions. Its list of version 1 had the others at the same address."""
    from fastai.data import download_checks
    from fastai.data.external import URLs

    checksums = {file.address: file.checksum for dataset in DATASETS for file in dataset.files}
    published = ast.literal_eval(Path(download_checks.__file__).read_text())
    for source, name in (("nette", "IMAGENETTE"), ("woof", "IMAGEWOOF")):
        for size, suffix in ((128, "_160"), (224, "_320"), (256, "")):
            archive = f"{image_sources.get_archive_name(source, None, size)}.tgz"
            address = getattr(URLs, name + suffix)
            assert address.endswith(f"/{archive}")
            bytes_, first = published[address]
            assert checksums[address].size == bytes_
            assert checksums[address].first_md5 in (first, None)
    whole = {address: known.md5 for address, known in checksums.items() if known.md5 and "nette" in address}
    assert whole == dict(Imagenette._ARCHIVES.values())


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("change", ["nothing", "version", "no version"])
def test_interrupted_download_resumes(
    mirror: type[Mirror], fraction: float, change: str, cache: Path
) -> None:
    """The download resumes if the server still has the same file, and otherwise starts again."""
    mirror.version = None if change == "no version" else '"1"'
    mirror.fraction = fraction
    for _ in range(2):
        with pytest.raises(InputError, match=r"not received completely.*--data PATH"):
            list_images("woof", None, 128)
    mirror.fraction = 1.0
    if change == "version":
        mirror.version = '"2"'
    assert len(list_images("woof", None, 128).splits["train"]) == 4
    whole = len(mirror.files[WOOF])
    assert mirror.sent[-1] == (whole - int(whole * fraction) if change == "nothing" else whole)
    left = {path.name for path in (cache / "downloads").iterdir()}
    assert left == {"imagewoof2-160.lock", "imagewoof2-160"}


def test_complete_download_is_not_repeated(
    mirror: type[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed while it unpacked the archive."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "unpack", killed)
        with pytest.raises(KeyboardInterrupt):
            list_images("woof", None, 128)
    assert len(list_images("woof", None, 128).splits["train"]) == 4
    assert len(mirror.asked) == 1


def test_damaged_archive_is_deleted(mirror: type[Mirror], cache: Path) -> None:
    mirror.files[WOOF] = mirror.files[WOOF][:-100] + bytes(100)
    with pytest.raises(InputError, match=r"not received completely.*is damaged"):
        list_images("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["imagewoof2-160.lock"]


def test_download_larger_than_the_disk_is_refused(
    mirror: type[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_FRACTION_OF_DISK", 0.0)
    with pytest.raises(InputError, match=r"larger than the space that may be used .*AUTOML_CACHE"):
        list_images("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["imagewoof2-160.lock"]


def test_credentials_of_a_mirror_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_MIRROR", "http://me:planted@127.0.0.1:1/mirror")
    with pytest.raises(InputError, match="must not contain a user or password") as raised:
        list_images("woof", None, 128)
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "size", "name"),
    [
        ("woof", 224, "imagewoof2-320.tgz"),
        ("woof", 225, "imagewoof2.tgz"),
        ("nette", 64, "imagenette2-160.tgz"),
        ("nette1", 128, "imagenette-160.tgz"),
    ],
)
def test_image_size_selects_the_archive(mirror: type[Mirror], source: str, size: int, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} cannot be downloaded .*404.*--data PATH"):
        list_images(source, None, size)
    assert mirror.asked == [f"/mirror/{name}"]


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nonsense"])
def test_no_server(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_MIRROR", address)
    with pytest.raises(InputError, match="--data PATH"):
        list_images("nette", None, 128)


@pytest.fixture
def published(mirror: type[Mirror], monkeypatch: pytest.MonkeyPatch) -> dict[str, PublishedDataset]:
    """Small datasets: an archive with a hash, several archives, and files that are no archives."""
    for name, members in {"a.zip": ["train2017/1.jpg"], "b.zip": ["annotations/x.json"]}.items():
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for member in members:
                archive.writestr(member, member)
        mirror.files[name] = buffer.getvalue()
    mirror.files["c.txt"], mirror.files["d.json"] = b"c", b"d"
    checksum = Checksum(md5=hashlib.md5(mirror.files["a.zip"]).hexdigest())

    def dataset(name: str, *files: Remote) -> PublishedDataset:
        about = {"about": "", "space": "folder", "license": "MIT", "source": "here"}
        return PublishedDataset(name=name, files=files, key=name, **about)

    at = "http://127.0.0.1:9"
    datasets = [
        dataset("checked", Remote(address=f"{at}/a.zip", checksum=checksum)),
        dataset("wrong", Remote(address=f"{at}/b.zip", checksum=checksum)),
        dataset("several", Remote(address=f"{at}/a.zip", checksum=checksum), Remote(address=f"{at}/b.zip")),
        dataset("plain", Remote(address=f"{at}/c.txt"), Remote(address=f"{at}/d.json")),
    ]
    table = {entry.name: entry for entry in datasets}
    monkeypatch.setattr(automl.data.download, "published_datasets", lambda: table)
    return table


@pytest.mark.usefixtures("published")
def test_published_datasets_are_downloaded_by_name(
    cache: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    for name, files in {
        "checked": {"1.jpg"},  # inside the only folder of the archive
        "several": {"train2017/1.jpg", "annotations/x.json"},
        "plain": {"c.txt", "d.json"},
    }.items():
        code, out, err = cli("data", "--download", name)
        assert code == 0, err
        folder = Path(out.splitlines()[0].removeprefix("downloaded "))
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert names == files
        assert f"next       automl search --space folder --data {folder}" in out
    left = {path.name for path in (cache / "downloads").iterdir() if path.suffix != ".lock"}
    assert left == {"checked", "several", "plain"}


@pytest.mark.usefixtures("published")
def test_wrong_hash_is_refused(cache: Path, cli: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = cli("data", "--download", "wrong")
    assert code == 2
    assert "is not the expected file" in err
    assert [path.name for path in (cache / "downloads").iterdir()] == ["wrong.lock"]
    code, _, err = cli("data", "--download", "chekced")
    assert code == 2
    assert "unknown published dataset 'chekced'; choose from checked, plain" in err


def test_published_datasets_are_listed(cli: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = cli("data", "--list")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines() if line[:1] != " "} == set(published_datasets())
    assert re.search(r"^ucihar +0.06 GB .*\n +CC BY 4.0; archive.ics.uci.edu", out, re.MULTILINE)
    for arguments in ((), ("photos", "--list")):
        code, _, err = cli("data", *arguments)
        assert (code, "give exactly one of PATH, --download NAME and --list" in err) == (2, True)


@pytest.mark.parametrize("name", published_datasets())
def test_published_datasets_have_a_space(name: str) -> None:
    dataset = published_datasets()[name]
    assert dataset.space in SPACES
    assert all(file.address.startswith("http") for file in dataset.files)
    assert len({file.name for file in dataset.files}) == len(dataset.files)
    if dataset.downloads_itself and dataset.space in ("nette", "woof"):
        sizes = {get_archive_name(dataset.space, None, size) for size in (128, 224, 256)}
        assert dataset.key in sizes, "a search must find it without --data"
