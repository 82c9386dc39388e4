"""The published datasets that `automl data --download NAME` downloads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError, unknown
from automl.data.download import Checksum, Remote, fetch_files
from automl.data.images.image_sources import ADDRESS, CHECKSUMS
from automl.data.sequences import ucihar
from automl.storage.cache_folder import cache_root

COCO = "http://images.cocodataset.org"
FREIBURG = "https://lmb.informatik.uni-freiburg.de/data/SceneFlowDatasets_CVPR16/Release_april16/data"
COCLR = "https://raw.githubusercontent.com/Jun-jie-Huang/CoCLR/main/data/search"
CODE = "https://huggingface.co/datasets/code-search-net/code_search_net/resolve/main/data"
NO_LICENSE = "of the photographs' owners"


@dataclass(frozen=True, kw_only=True)
class PublishedDataset:
    """A dataset that can be downloaded.

    Attributes:
        key: its name in the cache, under which a search without `--data` looks for it.
        space: a search space for it.
        downloads_itself: whether the space downloads it by itself, so that `--data` can be omitted.
        inside: a pattern of the folder with the data in the unpacked files.
        license, source: as far as they are known.
    """

    name: str
    about: str
    files: Sequence[Remote]
    key: str
    space: str
    license: str
    source: str
    downloads_itself: bool = False
    inside: str = ""

    @property
    def size(self) -> int:
        """The approximate size of all files in bytes; 0 if unknown."""
        sizes = [file.size for file in self.files]
        return sum(sizes) if all(sizes) else 0


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


LANGUAGES = {  # languages of CodeSearchNet and bytes of their archives
    "python": 940_909_997,
    "java": 1_060_569_153,
    "javascript": 1_664_713_350,
    "php": 851_894_048,
    "go": 487_525_935,
    "ruby": 111_758_028,
}
_SCENE_FLOW = {
    "flyingthings3d": ("FlyingThings3D", 39_473_469_440, 93_213_362_434),
    "monkaa": ("Monkaa", 9_672_867_840, 29_940_902_883),
    "driving": ("Driving", 6_681_896_960, 9_561_161_211),
}

PUBLISHED: Mapping[str, PublishedDataset] = {
    dataset.name: dataset
    for dataset in (
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
        PublishedDataset(
            name="ucihar",
            about="UCI HAR: 10,299 windows of a phone's sensors",
            files=[
                Remote(
                    address=ucihar.ADDRESS,
                    size=61_005_872,
                    checksum=Checksum(sha256=ucihar.SHA256),
                )
            ],
            key="ucihar",
            space="ucihar",
            license="CC BY 4.0",
            source="archive.ics.uci.edu/dataset/240",
            downloads_itself=True,
        ),
        *(
            PublishedDataset(
                name=f"codesearchnet-{language}",
                about=f"CodeSearchNet, functions in {language}",
                files=[Remote(address=f"{CODE}/{language}.zip", size=size)],
                key=f"codesearchnet-{language}",
                inside="**/final/jsonl",
                space="codesearch",
                license="of each repository",
                source="huggingface.co/datasets/code-search-net/code_search_net",
            )
            for language, size in LANGUAGES.items()
        ),
        PublishedDataset(
            name="cosqa",
            about="CoSQA: real queries for functions in Python",
            files=[
                Remote(address=f"{COCLR}/{file}")
                for file in (
                    "code_idx_map.txt",
                    "cosqa-retrieval-dev-500.json",
                    "cosqa-retrieval-test-500.json",
                )
            ],
            key="cosqa",
            space="codesearch",
            license="C-UDA 1.0",
            source="github.com/Jun-jie-Huang/CoCLR",
        ),
        PublishedDataset(
            name="coco",
            about="COCO 2017: 118,287 images for training, 5,000 for validation, boxes and masks",
            files=[
                Remote(
                    address=f"{COCO}/zips/train2017.zip",
                    size=19_336_000_000,
                    checksum=Checksum(md5="cced6f7f71b7629ddf16f17bbcfab6b2"),
                ),
                Remote(
                    address=f"{COCO}/zips/val2017.zip",
                    size=816_000_000,
                    checksum=Checksum(md5="442b8da7639aecaf257c1dceb8ba8c80"),
                ),
                Remote(
                    address=f"{COCO}/annotations/annotations_trainval2017.zip",
                    size=253_000_000,
                    checksum=Checksum(md5="f4bbac642086de4f52a3fdda2de5fa2c"),
                ),
            ],
            key="coco",
            space="coco-da",
            license=f"annotations CC BY 4.0; images {NO_LICENSE}",
            source="cocodataset.org",
        ),
        *(
            PublishedDataset(
                name=f"sceneflow-{name}",
                about=f"Scene Flow, {folder}: clean frames and disparities",
                files=[
                    Remote(address=f"{FREIBURG}/{folder}/raw_data/{name}__frames_cleanpass.tar", size=frames),
                    Remote(
                        address=f"{FREIBURG}/{folder}/derived_data/{name}__disparity.tar.bz2",
                        size=disparities,
                    ),
                ],
                key=f"sceneflow-{name}",
                space="sceneflow",
                license="research only",
                source="lmb.informatik.uni-freiburg.de",
            )
            for name, (folder, frames, disparities) in _SCENE_FLOW.items()
        ),
    )
}


def download_published(name: str) -> tuple[PublishedDataset, Path]:
    """Download a published dataset into the cache, once. Return it with its folder.

    Raises InputError for an unknown name, and if it cannot be downloaded.
    """
    if name not in PUBLISHED:
        raise InputError(
            f"{unknown('published dataset', name, PUBLISHED)} `automl data --list` describes them."
        )
    chosen = PUBLISHED[name]
    folder = fetch_files(chosen.key, chosen.files, cache_root())
    inside = next(folder.glob(chosen.inside), None) if chosen.inside else None
    return chosen, inside or folder


def list_published() -> Iterator[str]:
    """Yield lines with the size, license and source of each dataset."""
    for dataset in PUBLISHED.values():
        size = f"{dataset.size / 1e9:.2f} GB" if dataset.size else "-"
        yield f"{dataset.name:24}{size:>10}  {dataset.about}"
        unchecked = (
            ""
            if all(file.checksum.is_whole for file in dataset.files)
            else "; not all files have a published hash"
        )
        yield f"{'':36}{dataset.license}; {dataset.source}{unchecked}"
