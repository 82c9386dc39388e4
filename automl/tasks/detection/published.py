"""Published datasets of objects."""

from collections.abc import Sequence

from automl.data.download import NO_LICENSE, Checksum, PublishedDataset, Remote

COCO = "http://images.cocodataset.org"

DATASETS: Sequence[PublishedDataset] = (
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
)
