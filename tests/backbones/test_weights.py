"""Trained weights for a new model: selection of the backbone's weights, and weights that do not fit."""

import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from attention import Spec
from automl.base.errors import InputError
from backbones import build, insert, published_weights
from backbones.take_over import load
from tests.helpers import others_slow

SMALL = {"embed_dim": 12, "depth": 2, "heads": 3, "patch_size": 4}
MODELS: dict[str, tuple[Callable[[int], nn.Module], dict[str, Spec]]] = {
    "xresnet18": (
        lambda classes: build("xresnet18", classes=classes, width=0.25),
        {"stage1.block2.branch": Spec("ssa"), "stage2.block1": Spec("sagan")},
    ),
    "torchvision:resnet18": (
        lambda classes: build("torchvision:resnet18", classes=classes),
        {"stage3.block2": Spec("decomposed")},
    ),
    "vit": (
        lambda classes: build("vit", classes=classes, size=16, pool="mean", **SMALL),
        {"stage1.block1": Spec("multihead", {"heads": 2})},
    ),
}
every_model = pytest.mark.parametrize(
    ("make", "placement"),
    others_slow(MODELS.values(), MODELS["xresnet18"], MODELS["vit"], rows=True),
    ids=MODELS,
)
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@every_model
@torch.no_grad()
def test_weights_load_with_any_placement(
    make: Callable[[int], nn.Module], placement: dict[str, Spec]
) -> None:
    """The outputs are bit for bit equal, whatever attention either model has."""
    trained = make(5).eval()
    for value in trained.state_dict().values():
        value.add_(0.1 * torch.rand(value.shape)) if value.is_floating_point() else value
    expected = trained(IMAGES)
    bare = {key: value.clone() for key, value in trained.state_dict().items()}
    insert(trained, placement, IMAGES)
    for weights in (bare, trained.state_dict(), {f"module.{key}": value for key, value in bare.items()}):
        for inserted in ({}, placement):
            model = insert(make(5), inserted, IMAGES).eval()
            assert load(model, weights, classes=5, source="mine") == []
            assert torch.equal(model(IMAGES), expected)


@every_model
def test_a_head_for_other_labels_stays_new(
    make: Callable[[int], nn.Module], placement: dict[str, Spec]
) -> None:
    model, weights = make(7), make(5).state_dict()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    not_loaded = load(model, weights, classes=7, source="mine")
    assert len(not_loaded) == 2
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key] if key in not_loaded else weights[key]), key


def test_weights_of_a_replaced_mixer_are_ignored() -> None:
    make, _ = MODELS["vit"]
    weights = make(5).state_dict()
    model = insert(make(5), {"stage1.block2.mixer": Spec("decomposed")}, IMAGES)
    assert load(model, weights, classes=5, source="mine") == []
    assert torch.equal(model.state_dict()["blocks.1.norm1.weight"], weights["blocks.1.norm1.weight"])


def without(weights: dict[str, Tensor], *keys: str) -> dict[str, Tensor]:
    return {key: value for key, value in weights.items() if key not in keys}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: without(w, "conv1.weight"), r"they lack conv1\.weight\. Take"),
        (lambda w: {**w, "neck.weight": torch.zeros(3)}, r"the model lacks neck\.weight"),
        (
            lambda w: {**w, "conv1.weight": torch.zeros(64, 1, 7, 7)},
            r"conv1\.weight is \(64, 1, 7, 7\) there and",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    model = build("torchvision:resnet18", classes=5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InputError, match=f"the weights mine do not fit ResNet: .*{message}"):
        load(
            model,
            change(dict(build("torchvision:resnet18", classes=5).state_dict())),
            classes=5,
            source="mine",
        )
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class FileHandler(http.server.SimpleHTTPRequestHandler):
    """Handler that serves the files of a folder."""

    def __init__(self, *arguments: Any, folder: Path) -> None:
        super().__init__(*arguments, directory=str(folder))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the address of a server, and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    address = ("127.0.0.1", 0)
    with http.server.ThreadingHTTPServer(address, lambda *a: FileHandler(*a, folder=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


@pytest.fixture
def squeezenet(
    served: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """Yield the file that torchvision downloads for squeezenet1_1, and its weights."""
    address, folder = served
    torch.manual_seed(1)
    state = models.squeezenet1_1().state_dict()
    torch.save(state, folder / "new")
    digest = hashlib.sha256((folder / "new").read_bytes()).hexdigest()
    file = (folder / "new").rename(folder / f"squeezenet-{digest[:8]}.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    weights_entry = models.get_model_weights("squeezenet1_1").DEFAULT.value
    before = weights_entry.url
    object.__setattr__(weights_entry, "url", f"{address}/{file.name}")  # It is frozen.
    yield file, state
    object.__setattr__(weights_entry, "url", before)


def test_published_weights_of_torchvision(squeezenet: tuple[Path, dict[str, Tensor]]) -> None:
    _, expected = squeezenet
    weights = published_weights("torchvision:squeezenet1_1", classes=5)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


@pytest.mark.parametrize(
    ("damage", "why"),
    [(Path.unlink, "404"), (lambda file: file.write_bytes(b"other"), "invalid hash value")],
    ids=["gone", "another file"],
)
def test_failed_downloads_are_reported(
    damage: Any, why: str, squeezenet: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    damage(squeezenet[0])
    with pytest.raises(InputError, match=rf"published for 'torchvision:squeezenet1_1'.*{why}.*name the file"):
        published_weights("torchvision:squeezenet1_1", classes=5)
    assert not list((tmp_path / "cache").rglob("*.pth")), "no partial file is left"
