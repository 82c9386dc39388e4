"""Downloads of datasets, and archives of others."""

import ast
import hashlib
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torchvision.datasets import Imagenette

import automl.data.download
from automl.base.errors import InputError
from automl.data import archive as archives
from automl.data import download
from automl.data.archive import extract, extract_cached
from automl.data.download import Checksum, PublishedDataset, Remote, published_datasets
from automl.tasks.image_classification.data import dataset as image_sources
from automl.tasks.image_classification.data.dataset import DATASETS, get_archive_name, list_images
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


def test_files_are_downloaded_once(mirror: type[Mirror], cache: Path) -> None:
    for _ in range(2):
        listing = list_images("woof", None, 128)
        assert listing.classes == ("Shih-Tzu", "Samoyed")
        assert (len(listing.splits["train"]), len(listing.splits["test"])) == (4, 1)
    assert mirror.asked == ["/mirror/imagewoof2-160.tgz"]
    mirror.asked.clear()
    for source in ("woof1", "woof", "woof1"):
        assert list_images(source, None, 128).classes == ("Shih-Tzu", "Samoyed")
    assert mirror.asked == ["/mirror/imagewoof-160.tgz"]
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


def test_damaged_and_large_downloads_are_refused(
    mirror: type[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.files[WOOF] = mirror.files[WOOF][:-100] + bytes(100)
    with pytest.raises(InputError, match=r"not received completely.*is damaged"):
        list_images("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["imagewoof2-160.lock"]
    monkeypatch.setattr(download, "MAX_FRACTION_OF_DISK", 0.0)
    with pytest.raises(InputError, match=r"larger than the space that may be used .*AUTOML_CACHE"):
        list_images("woof", None, 128)
    assert [path.name for path in (cache / "downloads").iterdir()] == ["imagewoof2-160.lock"]
    monkeypatch.setenv("AUTOML_MIRROR", "http://me:planted@127.0.0.1:1/mirror")
    with pytest.raises(InputError, match="must not contain a user or password") as raised:
        list_images("woof", None, 128)
    assert "planted" not in str(raised.value)


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
    code, _, err = cli("data", "--download", "wrong")
    assert code == 2
    assert "is not the expected file" in err
    assert [path.name for path in (cache / "downloads").glob("wrong*")] == ["wrong.lock"]
    code, _, err = cli("data", "--download", "chekced")
    assert code == 2
    assert "unknown published dataset 'chekced'; choose from checked, plain" in err


@pytest.mark.parametrize("name", published_datasets())
def test_published_datasets_have_a_space(name: str) -> None:
    dataset = published_datasets()[name]
    assert dataset.space in SPACES
    assert all(file.address.startswith("http") for file in dataset.files)
    assert len({file.name for file in dataset.files}) == len(dataset.files)
    if dataset.downloads_itself and dataset.space in ("nette", "woof"):
        sizes = {get_archive_name(dataset.space, None, size) for size in (128, 224, 256)}
        assert dataset.key in sizes, "a search must find it without --data"


def tar(path: Path, *members: tuple[str, bytes | None], kind: bytes = tarfile.SYMTYPE) -> Path:
    """Write a tar file. A member without content is a link."""
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = kind, "/etc"
            else:
                info.size = len(content)
            file.addfile(info, io.BytesIO(content or b""))
    return path


def zipped(path: Path, *members: tuple[str, bytes | None]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            if content is None:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            file.writestr(info, content or b"/etc")
    return path


MAKERS = {"a.tgz": tar, "a.tar": tar, "a.tar.gz": tar, "a.zip": zipped}


@pytest.mark.parametrize("name", MAKERS)
def test_extracted_once_into_a_folder_named_by_content(name: str, tmp_path: Path, cache: Path) -> None:
    archive = MAKERS[name](tmp_path / name, ("top/a/x.png", b"1"), ("top/b/y.png", b"2"))
    folder = extract_cached(archive)
    assert folder.name == "top"  # the only folder inside
    assert (folder / "b" / "y.png").read_bytes() == b"2"
    (folder / "mark").touch()
    copy = tmp_path / f"copy-{name}"
    copy.write_bytes(archive.read_bytes())
    assert (extract_cached(copy) / "mark").exists()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["../out.png"], "leads outside"),
        (["a/../../out.png"], "leads outside"),
        (["/tmp/out.png"], "leads outside"),
        (["C:\\out.png"], "leads outside"),
        (["..\\out.png"], "leads outside"),
        (["link"], "is a link"),
        (["a/" + "x" * 300], "more than 255 bytes"),
        (["\N{CJK UNIFIED IDEOGRAPH-732B}" * 100], "more than 255 bytes"),
        (["d/" * 2_000 + "a.png"], "nested in more than 100 folders"),
        (["a", "a/b.png"], "both a file and a folder"),
        (["a/b/c.png", "a/b"], "both a file and a folder"),
        (["."], "is not a valid file name"),
        (["/".join(["x" * 250] * 30)], "no file can be called"),
    ],
    ids=lambda value: value[-1][:12] if isinstance(value, list) else "",
)
def test_invalid_members_are_refused(name: str, names: list[str], message: str, tmp_path: Path) -> None:
    members = ((member, None if member == "link" else b"x") for member in names)
    archive = MAKERS[name](tmp_path / name, ("good.png", b"x"), *members)
    with pytest.raises(InputError, match=message) as error:
        extract(archive, tmp_path / "into" / "here")
    assert len(str(error.value)) < 500
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["here.lock"]


def test_odd_members_are_extracted_and_false_ones_refused(tmp_path: Path) -> None:
    """Folders over folders, a file twice, no permissions, times out of range, non-UTF-8 and Windows names."""
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        for name in ("./", "a", "a"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0
            file.addfile(info)
        for name, mtime in (("a/1", 1e300), ("a/1", float("nan")), ("a/\udce4", -1)):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.pax_headers = 1, 0, {"mtime": str(mtime)}
            file.addfile(info, io.BytesIO(b"x"))
    extract(tmp_path / "a.tar", tmp_path / "tar")
    assert {path.name for path in (tmp_path / "tar" / "a").iterdir()} == {"1", "\udce4"}
    zipped(tmp_path / "a.zip", ("b/", b""), ("b\\1.png", b"x"), ("b//./2.png", b"x"))
    extract(tmp_path / "a.zip", tmp_path / "zip")
    assert {path.name for path in (tmp_path / "zip" / "b").iterdir()} == {"1.png", "2.png"}
    archive = tar(tmp_path / "a.tgz", ("a.png", b"x" * 50_000))
    content = bytearray(archive.read_bytes())
    content[-6] ^= 1  # in the checksum, which comes last
    archive.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        extract(archive, tmp_path / "flipped")


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_hard_links_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither file nor folder"):
        extract(tar(tmp_path / "a.tar", ("x", None), kind=kind), tmp_path / "into")


@pytest.mark.parametrize("name", ["a.tgz", "a.tar"])
@pytest.mark.parametrize("position", [0, 1])
def test_a_header_that_fills_the_memory_is_refused(name: str, position: int, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / name, "w:gz" if name == "a.tgz" else "w") as file:
        for i in range(2):
            info = tarfile.TarInfo(f"{i}.png")
            info.pax_headers = {"comment": "x" * (2 << 20)} if i == position else {}
            file.addfile(info)
    with pytest.raises(InputError, match="the header of a member has"):
        extract(tmp_path / name, tmp_path / "into")


@pytest.mark.parametrize("name", MAKERS)
def test_too_many_members_or_bytes_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = MAKERS[name](tmp_path / name, *((f"{i}.png", b"x" * 1000) for i in range(5)))
    monkeypatch.setattr(archives, "MAX_MEMBERS", 4)
    with pytest.raises(InputError, match="more than 4 members"):
        extract(archive, tmp_path / "into")
    monkeypatch.setattr(archives, "MAX_MEMBERS", 5)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 4000}))
    with pytest.raises(InputError, match="AUTOML_CACHE"):
        extract(archive, tmp_path / "into")


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.6, 0.99])
def test_truncated_archive_leaves_nothing(name: str, fraction: float, tmp_path: Path) -> None:
    import random

    noise = random.Random(0).randbytes(50_000)
    archive = MAKERS[name](tmp_path / name, ("a.png", noise), ("b.png", noise[::-1]))
    content = archive.read_bytes()
    # A tar file is padded with zeros, some of which may be cut.
    archive.write_bytes(content[: int(fraction * min(len(content), 100_000))])
    with pytest.raises(InputError, match="damaged or not an archive"):
        extract(archive, tmp_path / "into" / "here")
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["here.lock"]
