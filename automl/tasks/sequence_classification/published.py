"""Published datasets of sequences."""

from collections.abc import Sequence

from automl.data.download import Checksum, PublishedDataset, Remote
from automl.tasks.sequence_classification.data import ucihar

DATASETS: Sequence[PublishedDataset] = (
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
)
