"""`automl maps`: the maps of an export are those of its model, and its pictures show them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from attention import AttentionMap, Spec, attention_maps
from attention.attention_type import find_attention
from automl.export import run_export as export
from automl.export.chosen import Chosen
from automl.export.formats import CONFIG
from automl.export.run_maps import ExportedModule, MapGraph, run_maps
from automl.maps import colour, overlay, shade_tokens
from automl.storage.storage import Storage
from automl.task import Task, open_task
from automl.task.deployment import as_arrays
from backbones import IMAGENET, insert
from tests.helpers import others_slow
from tests.helpers.api_cases import run_examples
from tests.helpers.automl_cases import EVERY_ATTENTION, HERE, Cli, opened, sequence_config

CHOSEN = Chosen(name="name", checkpoint=Storage("checkpoint"), what="the run that was named")
SIZE, PATCH = 48, 4  # pixels of a picture, and of a position
RED, GREEN = (4, 4), (24, 28)  # column and row of the digits' first pixels
DIGIT = 16  # pixels of a digit


def looks_across(model: nn.Module) -> nn.Module:
    """Set the weights so that what is red looks at what is green, and the other way around."""
    convolution, attention = model[0], model[0].site_attention
    with torch.no_grad():
        convolution.weight.zero_()
        for channel in (0, 1):  # the mean of a colour in each patch, between 0 and 1
            convolution.weight[channel, channel] = IMAGENET.std[channel] / PATCH**2
            convolution.bias[channel] = IMAGENET.mean[channel]
        attention.in_proj.weight.zero_()
        attention.in_proj.weight[[0, 1, 8, 9], [0, 1, 1, 0]] = 10
        attention.gamma.fill_(1)
    return model


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a model of two colours, and draw a picture of a red 7 and a green 3."""
    folder = tmp_path_factory.mktemp("planted")
    placement = {"0": Spec("multihead", {"heads": 1})}
    task = opened(data={"size": SIZE}, model={"placement": placement})
    first = nn.Conv2d(3, 8, PATCH, stride=PATCH)
    nn.init.zeros_(first.bias)
    model = nn.Sequential(first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    looks_across(insert(model, placement, torch.empty(2, 3, SIZE, SIZE)).eval())
    export._write(folder, task, model, CHOSEN, folder, None)
    digits, picture = load_digits(), np.zeros((SIZE, SIZE, 3), np.uint8)
    for value, channel, (x, y) in ((7, 0, RED), (3, 1, GREEN)):
        digit = digits.images[list(digits.target).index(value)].repeat(2, 0).repeat(2, 1)
        picture[y : y + DIGIT, x : x + DIGIT, channel] = digit * 15
    Image.fromarray(picture).save(folder / "two.png")
    return folder


def brightest(file: Path) -> tuple[int, int]:
    """Return column and row of the brightest position of an overlay."""
    pixels = np.asarray(Image.open(file)).astype(float)
    assert pixels.shape == (SIZE, SIZE, 3)
    count = SIZE // PATCH
    light = pixels.mean(2).reshape(count, PATCH, count, PATCH).mean((1, 3))
    row, column = np.unravel_index(light.argmax(), light.shape)
    return int(column) * PATCH, int(row) * PATCH


def test_the_example_runs(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(planted, "exports/example")
    shutil.move("exports/example/two.png", "seven.png")
    run_examples(["run_maps"])


@pytest.mark.parametrize(("looking", "other"), [(RED, GREEN), (GREEN, RED)], ids=["red", "green"])
def test_an_overlay_points_at_the_other_digit(
    looking: tuple[int, int], other: tuple[int, int], planted: Path, tmp_path: Path, cli: Cli
) -> None:
    picture = np.asarray(Image.open(planted / "two.png"))
    x, y = looking
    patches = picture[y : y + DIGIT, x : x + DIGIT].max(2).reshape(4, PATCH, 4, PATCH).mean((1, 3))
    row, column = np.unravel_index(patches.argmax(), patches.shape)
    at = f"{x + PATCH * int(column)},{y + PATCH * int(row)}"
    code, out, err = cli("maps", str(planted), str(planted / "two.png"), "--out", str(tmp_path), "--at", at)
    assert (code, err) == (0, "")
    assert str(tmp_path / "two-0.png") in out
    column, row = brightest(tmp_path / "two-0.png")
    assert other[0] <= column < other[0] + DIGIT
    assert other[1] <= row < other[1] + DIGIT
    page = (tmp_path / "index.html").read_text()
    assert 'src="two-0.png"' in page
    assert f"as {at} sees it" in page


def live(task: Task, model: nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, AttentionMap]:
    with attention_maps(model) as maps:
        task.deployment(model).run(inputs)
    return maps


@pytest.fixture(
    scope="module",
    params=others_slow(["images", "tokens", "sequences", "sequences of one length"], "sequences"),
)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Task, nn.Module, Path]:
    folder = tmp_path_factory.mktemp("case")
    if request.param == "images":
        rescaling = {"stage1.block1": Spec("timm:se"), "stage2.block1": Spec("timm:cbam")}
        task = opened(model={"placement": EVERY_ATTENTION | rescaling})
    elif request.param == "tokens":
        replaced = {
            "stage1.block1.mixer": Spec("decomposed"),
            "stage1.block1.attention.branch": Spec("sagan"),
        }
        options = {"embed_dim": 16, "heads": 2, "depth": 2, "patch_size": 8}
        task = opened(model={"backbone": "vit", "options": options, "placement": replaced})
    else:
        placement = {"stage1.block1.branch": Spec("multihead"), "stage1.block1": Spec("sagan")}
        model = {"backbone": "resnet1d", "options": {"width": 0.0625, "blocks": 1}, "placement": placement}
        shortest = 12 if "one length" in request.param else 5
        task = open_task(sequence_config(folder, shortest=shortest, model=model), HERE)
    model = task.model().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    export._write(folder, task, model, CHOSEN, folder, None)
    return task, model, folder


def test_maps_of_an_export_are_those_of_its_model(case: tuple[Task, nn.Module, Path]) -> None:
    task, model, folder = case
    about = json.loads((folder / CONFIG).read_text())["modules"]["model"]
    placement = task.config.model.placement
    assert about.keys() == placement.keys()
    modules = [ExportedModule(site=site, spec=placement[site], **entry) for site, entry in about.items()]
    inputs = task.model_inputs("test", 4)
    exported = MapGraph(folder / "model.onnx", folder / "model.safetensors", modules).maps(as_arrays(inputs))
    expected = live(task, model, inputs)
    assert exported.keys() == expected.keys()
    assert expected.keys() == {site for site, spec in placement.items() if find_attention(spec.type).has_map}
    for site, ours in expected.items():
        torch.testing.assert_close(exported[site].weights, ours.weights, rtol=1e-3, atol=1e-4)
        if ours.mask is not None:
            assert torch.equal(exported[site].mask, ours.mask)
            assert not ours.mask.all()


def test_sequences_have_a_strip_and_images_an_overlay_for_each_module(
    case: tuple[Task, nn.Module, Path], tmp_path: Path, cli: Cli
) -> None:
    task, _, folder = case
    inputs = as_arrays(task.model_inputs("test", 1))
    if "images" in inputs:
        Image.fromarray(inputs["images"][0]).save(tmp_path / "one.png")
        file, at, size = tmp_path / "one.png", "20,3", (24, 24)
    else:
        values = inputs["values"][:, :, : int(inputs["lengths"][0]) if "lengths" in inputs else None]
        np.savez(tmp_path / "one.npz", x=values)
        file, at, size = tmp_path / "one.npz", "4", (680, 272)
    code, _, err = cli("maps", str(folder), str(file), "--out", str(tmp_path / "out"), "--at", at)
    assert (code, err) == (0, "")
    sites = [site for site, spec in task.config.model.placement.items() if find_attention(spec.type).has_map]
    pictures = sorted((tmp_path / "out").glob("*.png"))
    names = {picture.stem.removeprefix("one-").removesuffix("-positions") for picture in pictures}
    assert names == set(sites)
    rescaling = sum(spec.type.startswith("timm:") for spec in task.config.model.placement.values())
    sizes = [Image.open(picture).size for picture in pictures]
    assert sizes.count((680, 32)) == rescaling  # strips of channels; CBAM treats positions differently, too
    assert sizes.count(size) == len(pictures) - rescaling == len(sites) - (rescaling == 2)
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(site in page for site in sites)


def test_pictures_mark_the_query_and_scale_from_zero() -> None:
    heat = np.array([[0.0, 0.5], [1.0, 0.25]])
    drawn = overlay(np.zeros((8, 8, 3), np.uint8), heat, query=1)
    assert len(np.unique(drawn[4:].reshape(-1, 3), axis=0)) == 2  # nothing is interpolated
    assert (drawn[0, 4] == (255, 60, 30)).all()
    assert colour(heat).astype(int).sum(2).argmax() == 2
    assert (colour(np.full(3, 0.2)) == colour(np.ones(3))).all()  # even weights give an even picture
    tokens = overlay(np.zeros((8, 8, 3), np.uint8), np.arange(16.0))
    assert len(np.unique(tokens.reshape(-1, 3), axis=0)) == 16
    assert "&lt;b&gt;" in shade_tokens(["<b>", "a"], np.ones(2))


BAD = [
    (("photo.png",), ["there is no image photo.png"]),
    (("two.png", "--site", "1"), ["unknown site '1'", "0"]),
    (("two.png", "--at", "48,0"), ["--at 48,0 is outside of", "from 0 to 47"]),
    (("two.png", "--at", "3"), ["--at takes X,Y", "got 3"]),
    (("empty",), ["there is nothing to draw in empty"]),
    (("two.png", "--out", "two.png"), ["--out two.png cannot be written"]),
]


@pytest.mark.parametrize(("arguments", "fragments"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_arguments_have_one_message(
    arguments: tuple[str, ...],
    fragments: list[str],
    planted: Path,
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(planted / "two.png", ".")
    Path("empty").mkdir()
    code, out, err = cli("maps", str(planted), *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert all(fragment in err for fragment in fragments)


def _module(about: dict[str, Any], **spec: str) -> None:
    about["config"]["model"]["placement"]["0"] = spec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about["config"]["model"].update(placement={}), "has no inserted module"),
        (lambda about: about.pop("modules"), "has no exported model"),
        (lambda about: _module(about, type="planted.py:Gate"), r"would run '.*planted.py:Gate'.*--trust"),
        (lambda about: about.update(left_out={"model.onnx": "no operator"}), r"lacks: no operator"),
        (lambda about: _module(about, type="conv1x1"), "fit"),
        (lambda about: about["modules"]["model"]["0"].update(path="nowhere"), "fit"),
    ],
    ids=["no module", "no list of modules", "code of its author", "left out", "other weights", "other path"],
)
def test_exports_without_what_is_needed_are_refused(
    change: Callable[[dict], object], message: str, planted: Path, tmp_path: Path
) -> None:
    for name in (CONFIG, "model.onnx", "model.safetensors"):
        shutil.copy(planted / name, tmp_path)
    about = json.loads((tmp_path / CONFIG).read_text())
    change(about)
    (tmp_path / CONFIG).write_text(json.dumps(about))
    with pytest.raises(export.InputError, match=message):
        run_maps(tmp_path, [planted / "two.png"], out=tmp_path / "maps")
