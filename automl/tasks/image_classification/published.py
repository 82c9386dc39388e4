"""Published datasets of images."""

from collections.abc import Iterator, Sequence

from automl.data.download import NO_LICENSE, Checksum, PublishedDataset, Remote
from automl.tasks.image_classification.data.sources import ADDRESS, CHECKSUMS


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
