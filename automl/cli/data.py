"""What `automl data` says of a dataset, and the sheet that it writes of images."""

from pathlib import Path

from attention import InputError, unknown
from automl.config.settings import Settings
from automl.data.code import is_code
from automl.data.code.overview import CodeOverview, look_over_code
from automl.data.detection import is_coco
from automl.data.detection.overview import DetectionOverview, look_over_detection
from automl.data.images import open_split
from automl.data.images.overview import Overview, look_over
from automl.data.images.sheet import save_sheet
from automl.data.sequences import are_sequences
from automl.data.sequences.overview import SequencesOverview, look_over_sequences
from automl.data.stereo import is_stereo
from automl.data.stereo.overview import StereoOverview, look_over_stereo
from automl.tasks.image_classification import LEAST_CROP
from search.choices import AUGMENT

Other = StereoOverview | CodeOverview | DetectionOverview | SequencesOverview


def look_over_others(path: str) -> Other | None:
    """What there is beside images of classes. Raises InputError for what cannot be read."""
    if is_stereo(path):
        return look_over_stereo(path)
    if is_code(path):
        return look_over_code(path)
    if is_coco(path):
        return look_over_detection(path)
    there = Path(path).expanduser().exists()
    return look_over_sequences(path) if there and are_sequences(path) else None


def overview(path: str, size: int) -> Overview:
    """Raises InputError for a size out of range, and for what is no dataset of images."""
    if not 24 <= size <= 1024:
        raise InputError(f"--size must lie between 24 and 1024 pixels; got {size}")
    return look_over("folder", path, size)


def write_sheet(path: str, size: int, *, flip: bool, augment: str) -> Path:
    """A PNG in the current folder. Raises InputError for an unknown `augment` and where it cannot write."""
    if augment not in AUGMENT:
        raise unknown("augmentation", augment, AUGMENT)
    name = Settings(space="folder", data=path).title
    file = Path(f"{name}-samples.png")
    chosen = AUGMENT[augment]
    try:
        save_sheet(
            open_split("folder", "train", path=path, size=size),
            file,
            size=size,
            scale=LEAST_CROP,
            flip=flip,
            policy=chosen["policy"],
            erase=chosen["erasing"],
        )
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}") from error
    return file
