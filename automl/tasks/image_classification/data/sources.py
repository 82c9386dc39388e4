"""The table of image sources, the list of images of each, and the published datasets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from automl.base.errors import InputError, unknown
from automl.data.archive import SUFFIXES, extract_cached, is_archive
from automl.data.digest import hash_contents
from automl.data.digits import read_digits
from automl.data.download import NO_LICENSE, Checksum, PublishedDataset, Remote, download_archive
from automl.data.records import Item, Listing
from automl.storage.cache_folder import cache_root
from automl.tasks.image_classification.data.folders import read_image_folder

NETTE = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}

WOOF = {
    "n02086240": "Shih-Tzu",
    "n02087394": "Rhodesian ridgeback",
    "n02088364": "Beagle",
    "n02089973": "English foxhound",
    "n02093754": "Border terrier",
    "n02096294": "Australian terrier",
    "n02099601": "Golden retriever",
    "n02105641": "Old English sheepdog",
    "n02111889": "Samoyed",
    "n02115641": "Dingo",
}

ADDRESS = "https://s3.amazonaws.com/fast-ai-imageclas/"  # the folder of fastai's archives

# Second versions: MD5 from torchvision; size and MD5 of the first MiB from fastai. First Imagenette: SHA-256
# and size from TensorFlow Datasets. No hash of the first Imagewoof is published.
CHECKSUMS: dict[str, Checksum] = {
    "imagenette2.tgz": Checksum(size=1557161267, md5="fe2fc210e6bb7c5664d602c3cd71e612"),
    "imagenette2-320.tgz": Checksum(size=341663724, md5="3df6f0d01a2c9592104656642f5e78a3"),
    "imagenette2-160.tgz": Checksum(size=99003388, md5="e793b78cc4c9e9a4ccc0c1155377a412"),
    "imagewoof2.tgz": Checksum(size=1343715595, first_md5="2cc1c1e36e20cb6fd24ffb978edcb487"),
    "imagewoof2-320.tgz": Checksum(size=328387740, first_md5="7a1fd92672a559a85de76e4810a20c21"),
    "imagewoof2-160.tgz": Checksum(size=92612825, first_md5="3559b194123981a540b87132dbda412f"),
    "imagenette.tgz": Checksum(
        size=1556495367, sha256="1bd650bc16884ca88e4f0f537ed8569b1f8d7ae865d37eba8ecdd87d9cd9dcfa"
    ),
    "imagenette-320.tgz": Checksum(
        size=341289752, sha256="0e3ac85d7f3fd0a63d5e27d85c68511be9ac4dae260345b6f7434a0d4fa24b3f"
    ),
    "imagenette-160.tgz": Checksum(
        size=98752094, sha256="4bacf19aa3f2454e330ac366c98ac1e470ccc6bebca8ff63ecc7f339cb2ead11"
    ),
}


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A kind of dataset that `source` can name."""

    name: str
    description: str
    flip: bool = True  # whether an image's mirror image still shows its class
    built_in: Callable[[], Listing[Item]] | None = None  # lists a dataset that comes with a library
    archive: str | None = None  # its name at fastai's address, without the suffix for the size
    readable: Mapping[str, str] = field(default_factory=dict)  # class names for names of folders


def _list_digits() -> Listing[Item]:
    images, labels = read_digits()
    pixels = (images * (255 / 16)).round().astype(np.uint8)
    everything = [
        Item(f"digit{i}", image, int(label), content)
        for i, (image, label, content) in enumerate(
            zip(pixels, labels, hash_contents(list(pixels), cache_root()), strict=True)
        )
    ]
    return Listing(classes=tuple(map(str, range(10))), splits={"train": everything})


SOURCES: dict[str, ImageSource] = {
    source.name: source
    for source in (
        ImageSource(
            name="digits",
            description="1,797 handwritten digits of 8x8 pixels, from scikit-learn",
            flip=False,  # A mirrored digit is another digit or none.
            built_in=_list_digits,
        ),
        ImageSource(
            name="nette",
            description="Imagenette: 10 classes of ImageNet that are easy to distinguish",
            archive="imagenette2",
            readable=NETTE,
        ),
        ImageSource(
            name="woof",
            description="Imagewoof: 10 breeds of dogs from ImageNet, hard to distinguish",
            archive="imagewoof2",
            readable=WOOF,
        ),
        ImageSource(
            name="nette1",
            description="the first version of Imagenette, with 500 test images",
            archive="imagenette",
            readable=NETTE,
        ),
        ImageSource(
            name="woof1",
            description="the first version of Imagewoof, with 500 test images",
            archive="imagewoof",
            readable=WOOF,
        ),
        ImageSource(
            name="folder", description="images of your own, in one folder per class or an archive of that"
        ),
    )
}


def list_images(source: str, path: str | Path | None, size: int) -> Listing[Item]:
    """List the images of a source with their hashes for training at `size` pixels, without decoding them.

    `path` is a folder (see `folders`) or an archive of one. Without a path, `nette`, `woof`, `nette1` and
    `woof1` are downloaded. Sizes up to 128 use the archive of 160 pixels, sizes up to 224 that of 320 pixels,
    and larger ones the full archive.

    Raises:
        InputError: The source is unknown, the path is missing or not allowed, a download failed, the folder
            or archive is not a dataset, or a file cannot be read.
    """
    if source not in SOURCES:
        raise unknown("data source", source, SOURCES)
    known = SOURCES[source]
    if known.built_in is not None:
        if path is not None:
            raise InputError(f"{source} comes with its library and takes no path, not {path}; drop --data")
        return known.built_in()
    if path is not None:
        return read_image_folder(_resolve_path(Path(path).expanduser()), known.readable, cache_root())
    archive = get_archive_name(source, path, size)
    if archive is None:
        raise InputError(f"{source} needs the path of a folder or archive; pass --data PATH")
    name = f"{archive}.tgz"
    folder = download_archive(ADDRESS + name, archive, cache_root(), CHECKSUMS.get(name))
    return replace(read_image_folder(folder, known.readable, cache_root()), archive=archive)


def get_archive_name(source: str, path: str | Path | None, size: int) -> str | None:
    """Return the name of the archive to download; None if the images come from elsewhere.

    The archives of a source hold the same photographs, by name, at different sizes.
    """
    name = SOURCES[source].archive
    if path is not None or name is None:
        return None
    return name + ("-160" if size <= 128 else "-320" if size <= 224 else "")


def _resolve_path(path: Path) -> Path:
    if path.is_dir():
        return path
    if not path.exists():
        raise InputError(f"there is no file or folder {path}; pass --data PATH with one that exists")
    if not is_archive(path):
        raise InputError(f"{path} is neither a folder nor an archive; choose from {', '.join(SUFFIXES)}")
    return extract_cached(path, cache_root())


def _fastai_sizes(name: str, archive: str, about: str) -> Iterator[PublishedDataset]:
    """Yield the three sizes of one set of photographs."""
    for suffix, pixels in (("", "full size"), ("-320", "320 px"), ("-160", "160 px")):
        file = f"{archive}{suffix}.tgz"
        checksum = CHECKSUMS.get(file, Checksum())
        yield PublishedDataset(
            name=f"{name}{suffix}",
            about=f"{about}, {pixels}",
            files=[Remote(address=ADDRESS + file, size=checksum.size or 0, checksum=checksum)],
            key=f"{archive}{suffix}",
            space=name.removesuffix("1"),
            license=NO_LICENSE,
            source="github.com/fastai/imagenette",
            downloads_itself=not name.endswith("1"),
        )


DATASETS: Sequence[PublishedDataset] = (
    *_fastai_sizes("nette", "imagenette2", "Imagenette, second version"),
    *_fastai_sizes("woof", "imagewoof2", "Imagewoof, second version"),
    *_fastai_sizes("nette1", "imagenette", "Imagenette, first version"),
    *_fastai_sizes("woof1", "imagewoof", "Imagewoof, first version"),
    PublishedDataset(
        name="tiny-imagenet",
        about="Tiny ImageNet: 200 classes at 64 px",
        files=[
            Remote(
                address="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                size=248_100_043,
                checksum=Checksum(md5="90528d7ca1a48142e341f4ef8d21d0de"),
            )
        ],
        key="tiny-imagenet",
        space="folder",
        license=NO_LICENSE,
        source="cs231n.stanford.edu",
    ),
)
