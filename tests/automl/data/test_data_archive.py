import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from automl.base.errors import InputError
from automl.data import archive as archives
from automl.data.archive import extract, extract_cached


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
    ("member", "message"),
    [
        (("../out.png", b"x"), "leads outside"),
        (("a/../../out.png", b"x"), "leads outside"),
        (("/tmp/out.png", b"x"), "leads outside"),
        (("C:\\out.png", b"x"), "leads outside"),
        (("..\\out.png", b"x"), "leads outside"),
        (("link", None), "is a link"),
    ],
)
def test_members_that_could_write_elsewhere_are_refused(
    name: str, member: tuple[str, bytes | None], message: str, tmp_path: Path
) -> None:
    archive = MAKERS[name](tmp_path / name, ("good.png", b"x"), member)
    with pytest.raises(InputError, match=message):
        extract(archive, tmp_path / "into" / "here")
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["here.lock"]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("names", "message"),
    [
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
def test_invalid_file_names_are_refused(name: str, names: list[str], message: str, tmp_path: Path) -> None:
    archive = MAKERS[name](tmp_path / name, ("good.png", b"x"), *((member, b"x") for member in names))
    with pytest.raises(InputError, match=message) as error:
        extract(archive, tmp_path / "into" / "here")
    assert len(str(error.value)) < 500
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["here.lock"]


def test_odd_but_harmless_members_are_extracted(tmp_path: Path) -> None:
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


def changed(archive: Path, old: bytes, new: bytes) -> Path:
    content = archive.read_bytes()
    assert old in content
    archive.write_bytes(content.replace(old, new))
    return archive


def test_members_with_false_headers_are_refused(tmp_path: Path) -> None:
    flagged = zipped(tmp_path / "utf8.zip", ("\N{LATIN SMALL LETTER E WITH ACUTE}.png", b"x"))
    changed(flagged, b"\xc3\xa9", b"\xc3\x28")
    encrypted = zipped(tmp_path / "encrypted.zip", ("a.png", b"x"))
    changed(encrypted, b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")
    rare = zipped(tmp_path / "rare.zip", ("a.png", b"x"))
    content = bytearray(rare.read_bytes())
    for start, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        content[content.index(start) + at] = 99
    rare.write_bytes(content)
    negative = tarfile.TarInfo("a.png")
    negative.size = -512
    (tmp_path / "negative.tar").write_bytes(negative.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    for archive in (flagged, encrypted, rare, tmp_path / "negative.tar"):
        with pytest.raises(InputError, match=r"damaged or not an archive|cannot be extracted"):
            extract(archive, tmp_path / "into" / archive.name)


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


def test_flipped_bit_is_detected(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tgz", ("a.png", b"x" * 50_000))
    content = bytearray(archive.read_bytes())
    content[-6] ^= 1  # in the checksum, which comes last
    archive.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        extract(archive, tmp_path / "into")
