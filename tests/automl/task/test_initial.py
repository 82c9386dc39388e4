"""Initial weights of trainings, by path or name."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from attention import Spec
from automl.base.errors import InputError
from automl.storage.storage import Storage
from automl.task import open_task
from automl.task.initial import choose_weights
from automl.training import checkpoint
from automl.training.loop import evaluate, fit, start
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE, TINY, tiny

PLACEMENTS = [
    {},
    {"stage1.block2.branch": Spec("ssa")},
    {"stem": Spec("sagan"), "stage2.block1": Spec("multihead")},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return the folder of a trial after an epoch, and its accuracy."""
    folder = tmp_path_factory.mktemp("trained") / "0000"
    folder.mkdir()
    task = open_task(TINY, HERE)
    state = start(task)
    history = list(fit(task, state))
    checkpoint.save(Storage(str(folder)), TINY, state, history)
    weights = {key: value.contiguous() for key, value in state.model.state_dict().items()}
    save_file(weights, folder.parent / "mine.safetensors")
    torch.save({"state_dict": state.model.state_dict()}, folder.parent / "mine.pt")
    return folder, history[-1]["accuracy"]


@pytest.mark.parametrize("name", ["0000", "0000/checkpoint.pt", "mine.safetensors", "mine.pt"])
def test_a_backbone_starts_at_its_own_accuracy_with_any_placement(
    trained: tuple[Path, float], name: str
) -> None:
    folder, accuracy = trained
    file, digest = choose_weights(str(folder.parent / name))
    for placement in PLACEMENTS:
        task = open_task(
            tiny(model={"placement": placement, "weights": file, "weights_digest": digest}), HERE
        )
        assert evaluate(task, start(task).model)["accuracy"].item() == pytest.approx(accuracy, abs=1e-7)
    assert TrialConfig.from_json(task.config.to_json()) == task.config


def test_changed_weights_are_rejected(trained: tuple[Path, float]) -> None:
    config = tiny(model={"weights": str(trained[0] / "checkpoint.pt"), "weights_digest": "0" * 32})
    with pytest.raises(InputError, match="have changed since they were chosen"):
        start(open_task(config, HERE))


def test_sites_whose_channels_are_the_labels() -> None:
    """A fully convolutional head has as many channels as there are classes."""
    config = tiny(data={"size": 64}, training={"batch_size": 8})
    model = {
        "backbone": "torchvision:squeezenet1_1",
        "options": {},
        "placement": {"classifier.2": Spec("ssa")},
    }
    task = open_task(config.change(model=model), HERE)
    assert task.model()(task.example(2)).shape == (2, 10)


def test_weight_files_are_found_and_read_again(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="were not found"):
        choose_weights(str(tmp_path))
    file = tmp_path / "weights.pt"
    torch.save({"weight": torch.zeros(3)}, file)
    first = choose_weights(str(file))
    torch.save({"weight": torch.ones(4)}, file)
    assert choose_weights(str(file))[1] != first[1]
    (tmp_path / "mine.pt").write_bytes(b"")
    with pytest.raises(InputError, match="were not found"):
        choose_weights(str(tmp_path / "mine.pt" / "more.pt"))


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Provide timm's weights of a ViT for 1,000 labels, as if they had been downloaded."""
    with torch.random.fork_rng():
        weights = timm.create_model("test_vit").state_dict()

    def load(model: nn.Module, *args: Any, **kwargs: Any) -> None:
        model.load_state_dict(weights)

    monkeypatch.setattr("timm.models._builder.load_pretrained", load)
    return dict(weights)


@pytest.mark.slow("a library's model")
def test_published_weights_leave_the_head_to_the_seed(published: dict[str, Tensor]) -> None:
    """The result does not depend on the first caller in a process, and draws no random number."""
    heads = []
    for seed in (1, 2):
        config = tiny(seed=seed, data={"size": 160}, training={"batch_size": 8})
        config = config.change(model={"backbone": "timm:test_vit", "options": {}, "weights": "default"})
        task = open_task(config, HERE)
        model = task.model()
        before, drawn = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
        assert set(task.initialise(model)) == {"head.weight", "head.bias"}
        assert torch.equal(torch.get_rng_state(), drawn)
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key] if key.startswith("head.") else published[key]), key
        heads.append(model.head.weight)
    assert not torch.equal(*heads)
