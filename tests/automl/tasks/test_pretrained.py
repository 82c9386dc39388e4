"""The pretrained backbone that photographs get by default: where its weights come from, and its training."""

import hashlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import models

import automl.tasks.image_classification.fit as chooses
from automl.config.nouns import Question
from automl.search.prepare import fit, open_settings
from automl.storage.folder import new_folder
from automl.task import open_task
from automl.task.initial import load_published
from tests.helpers.automl_cases import HERE, tiny
from tests.helpers.confirm_cases import PLAN
from tests.helpers.services import Mirror, serve_mirror

SMALL = "torchvision:squeezenet1_1"
Offered = tuple[str, dict[str, Tensor]]


@pytest.fixture
def photos(tmp_path: Path, make_folder: Callable[..., Path]) -> str:
    return str(make_folder(tmp_path / "photos", {"cat": 4, "dog": 4}))


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offered]:
    """Offer weights in a mirror, of the only backbone to choose. Yield the name of their file, and them."""
    state = models.squeezenet1_1().state_dict()
    torch.save(state, tmp_path / "new")
    content = (tmp_path / "new").read_bytes()
    file = f"squeezenet-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    entry = models.get_model_weights("squeezenet1_1").DEFAULT.value
    before = entry.url
    object.__setattr__(entry, "url", f"https://download.pytorch.org/models/{file}")  # It is frozen.
    monkeypatch.setattr(chooses, "PRETRAINED", (SMALL,))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with serve_mirror({file: content}) as address:
        monkeypatch.setenv("AUTOML_MIRROR", address)
        yield file, state
    object.__setattr__(entry, "url", before)


def test_weights_of_a_mirror_are_asked_for_once_and_kept(
    offered: Offered, photos: str, tmp_path: Path
) -> None:
    file, expected = offered
    for _ in range(2):
        chosen = fit(photos)
        assert chosen.settings == {"space": "folder", "backbone": SMALL, "weights": "default", "size": 96}
        assert chosen.why.startswith(f"backbone {SMALL} with pretrained weights at 96 px, since there are ")
    assert Mirror.asked == [f"/mirror/{file}"] * 2  # whether it is there, and the file
    assert (tmp_path / "torch" / "hub" / "checkpoints" / file).read_bytes() == Mirror.files[file]
    assert all(torch.equal(value, expected[key]) for key, value in load_published(SMALL, classes=2).items())
    assert fit(photos, backbone="xresnet18").settings == {"space": "folder", "size": 32}
    assert len(Mirror.asked) == 2


@pytest.mark.parametrize("case", ["offline", "silent", "gone", "another file"])
def test_random_weights_are_chosen_if_there_are_no_others(
    case: str, offered: Offered, photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("automl.data.download.ASKED", 0.2)
    reason = r"127\.0\.0\.1:\d+ did not offer them within 3 s \(a copy of https"
    if case == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        reason = "HF_HUB_OFFLINE forbids a download"
    elif case == "gone":
        Mirror.files.clear()
    elif case == "another file":
        Mirror.files[offered[0]] = b"another"
        reason = r"squeezenet-\w+\.pth is not the expected file"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if case == "silent":
            monkeypatch.setenv("AUTOML_MIRROR", f"http://127.0.0.1:{silent.getsockname()[1]}")
        chosen = fit(photos)
    assert chosen.settings == {"space": "folder", "backbone": "xresnet18", "size": 32}
    assert re.search(f"backbone xresnet18 .* and no pretrained weights: .*{reason}", chosen.why)
    assert len(Mirror.asked) == {"gone": 1, "another file": 2}.get(case, 0)
    assert not list(tmp_path.glob("torch/hub/checkpoints/*.pth"))
    # Who asks for them gets the backbone, whose check says what is missing.
    assert fit(photos, weights="default").settings["backbone"] == SMALL


def test_a_resumed_search_repeats_the_choice(
    offered: Offered, photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"data": photos, "name": "mine"}
    settings = open_settings(values)
    with new_folder(settings, PLAN, fingerprint="f", data="d"):
        pass
    monkeypatch.setenv("AUTOML_MIRROR", "http://127.0.0.1:1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "another"))
    resumed = open_settings(values, resume=True)
    assert resumed.question == settings.question
    assert (resumed.question.backbone, resumed.question.weights) == (SMALL, "default")
    assert open_settings(values).question.backbone == "xresnet18"
    assert open_settings({**values, "size": 48}, resume=True).question.size == 48


def test_trained_weights_are_fine_tuned(photos: str) -> None:
    """Drawn rates are lower. The baseline has the recipe that measured best, and free answers have it too."""
    options: dict[str, Any] = {"space": "folder", "data": photos, "backbone": "xresnet18", "size": 32}
    scratch = Question(**options).open()
    tuned = Question(**options, weights="mine.pt", weights_digest="0").open()
    first, then = scratch.baseline.training, tuned.baseline.training
    assert (first.learning_rate, first.layer_decay) == (3e-3, 1)
    assert (then.learning_rate, then.layer_decay) == (3e-3, 1)
    assert max(c.training.learning_rate for c in tuned.configs(12) if c.training.optimizer == "adamw") < 1e-2
    assert all(answer["layer_decay"] == 1 for answer in tuned.space.free())


@pytest.mark.parametrize("below", [0, 1000])
def test_batch_norms_of_the_backbone_keep_their_statistics_with_few_images(below: int) -> None:
    task = open_task(tiny(training={"frozen_norms_below": below}), HERE)
    model = task.model()
    before = {key: value.clone() for key, value in model.state_dict().items() if "running_" in key}
    task.set_training(model)
    model(torch.rand_like(task.example(4)))
    after = model.state_dict()
    changed = [key for key, value in before.items() if not torch.equal(value, after[key])]
    assert changed == ([] if below else list(before))
    assert all(p.requires_grad for p in model.parameters())
