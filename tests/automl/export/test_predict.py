import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from automl.base.errors import InputError
from automl.data.augment import centre_crop
from automl.export.export_result import ExportResult
from automl.export.predict import BATCH, run_predict
from automl.storage.storage import Storage
from automl.task import open_task
from automl.tasks.image_classification.data import open_split
from automl.tasks.image_classification.task import ImageAnswers
from automl.training import checkpoint
from automl.trials.train import TrainResult
from search.config import TrialConfig
from tests.helpers.automl_cases import CPU, HERE, Cli


def picture(file: Path, mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Path:
    pixels = np.random.RandomState(0).randint(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    Image.fromarray(pixels, "RGBA").convert(mode).save(file)
    return file


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK"])
@pytest.mark.parametrize("size", [(40, 30), (7, 5), (1, 1), (24, 24), (300, 20)])
def test_any_image(mode: str, size: tuple[int, int], exported: ExportResult, tmp_path: Path) -> None:
    file = picture(tmp_path / f"a.{'tif' if mode == 'CMYK' else 'png'}", mode, size)
    (prediction,) = run_predict(exported.folder, [file]).predictions
    assert prediction.input == str(file)
    values = prediction.values
    assert list(values["probabilities"]) == [str(digit) for digit in range(10)]
    assert sum(values["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert values["probability"] == max(values["probabilities"].values())
    assert values["probability"] == values["probabilities"][values["label"]]


def test_agrees_with_what_evaluation_sees(
    exported: ExportResult, trained: TrainResult, tmp_path: Path
) -> None:
    """Digits saved as files are predicted as the trained model scores them in its test split."""
    content = checkpoint.read(Storage(trained.checkpoint.parent), CPU)
    task = open_task(TrialConfig.from_json(content["config"]), HERE)
    model = task.model()
    model.load_state_dict(content["model"])
    test = open_split("digits", "test", size=24)
    count = BATCH + 3  # in more than one batch
    with torch.inference_mode():
        inputs = centre_crop(test.gather(torch.arange(count)), test.aspect[:count], 24)
        expected = ImageAnswers(model).eval()(inputs).numpy()
    files = []
    for name in test.names()[:count]:
        pixels = load_digits().images[int(name.removeprefix("digit"))] * (255 / 16)
        files.append(tmp_path / f"{name}.png")
        Image.fromarray(pixels.round().astype(np.uint8)).save(files[-1])
    predictions = run_predict(exported.folder, files).predictions
    assert [prediction.input for prediction in predictions] == list(map(str, files))
    probabilities = np.array(
        [list(prediction.values["probabilities"].values()) for prediction in predictions]
    )
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_file_that_is_not_an_image_is_reported(
    content: bytes, exported: ExportResult, tmp_path: Path
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"a.png cannot be read as an image"):
        run_predict(exported.folder, [file])
    good = picture(tmp_path / "good.png")
    result = run_predict(exported.folder, [file, good])
    assert [prediction.input for prediction in result.predictions] == [str(good)]
    assert list(result.unread) == [str(file)], "it costs that file alone"


def test_folders_and_files_are_read_as_in_training(exported: ExportResult, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for name in ("notes.txt", "._a.png", "Thumbs.db"):
        (tmp_path / name).write_bytes(b"no picture")
    (tmp_path / "more" / "again").symlink_to("..")
    files = [picture(tmp_path / name) for name in ("a.png", "b.PNG", "more/c.bmp")]
    files.append(files[0].rename(tmp_path / "d.jpg_large"))
    (tmp_path / "e.jxl").write_bytes(b"not read here")
    result = run_predict(exported.folder, [tmp_path])
    assert {prediction.input for prediction in result.predictions} == {*map(str, files[1:])}
    assert [*result.unread] == [str(tmp_path / "e.jxl")]
    # Rotation by EXIF and 12 bits do not change the prediction.
    grey = np.asarray(Image.open(picture(tmp_path / "seen.png", "L")))
    exif = Image.Exif()
    exif[0x112] = 6
    Image.fromarray(grey).transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(grey.astype(np.uint16) << 4).save(tmp_path / "12 bits.png")
    files = [tmp_path / name for name in ("seen.png", "turned.png", "12 bits.png")]
    seen, turned, deep = (prediction.values for prediction in run_predict(exported.folder, files).predictions)
    assert seen == turned == deep


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no folder": lambda folder: shutil.rmtree(folder),
    "random onnx": lambda folder: (folder / "model.onnx").write_bytes(bytes(range(256)) * 40),
    "config is no JSON": lambda folder: (folder / "config.json").write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_export_is_reported(damage: str, exported: ExportResult, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    for name in ("config.json", "model.onnx"):
        shutil.copy(exported.folder / name, folder)
    DAMAGES[damage](folder)
    with pytest.raises(InputError, match="has no exported model; create one with `automl export`"):
        run_predict(folder, [picture(tmp_path / "a.png")])


def test_several_labels_and_a_bad_file(exported: ExportResult, tmp_path: Path, cli: Cli) -> None:
    good, bad = picture(tmp_path / "a.png"), tmp_path / "b.png"
    bad.touch()
    code, out, err = cli("predict", str(exported.folder), str(tmp_path), "--top", "3", "--json")
    assert code == 1
    line, error = err.splitlines()
    assert error.startswith(f"error: {bad} cannot be read as an image")
    answer, failure = json.loads(out)
    best = sorted(answer["probabilities"].items(), key=lambda item: -item[1])[:3]
    assert line == f"{good}: " + ", ".join(f"{label} ({value:.1%})" for label, value in best)
    assert (failure["input"], "cannot be read" in failure["error"]) == (str(bad), True)
