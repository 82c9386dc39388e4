"""The weights that trainings start from, by the names that a person gives them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from automl_cases import HERE, TINY, tiny
from safetensors.torch import save_file

from attention import InputError, Spec
from automl.storage.storage import Storage
from automl.tasks import open_task
from automl.tasks.initial import choose_weights
from automl.training import checkpoint
from automl.training.loop import evaluate, fit, start
from search.config import Model, TrialConfig

PLACEMENTS = [
    {},
    {"stage1.block2.branch": Spec("ssa")},
    {"stem": Spec("sagan"), "stage2.block1": Spec("multihead")},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder of a trial after an epoch, and its accuracy."""
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
def test_a_trunk_starts_at_its_own_accuracy_with_any_placement(
    trained: tuple[Path, float], name: str
) -> None:
    folder, accuracy = trained
    file, digest = choose_weights(str(folder.parent / name))
    for placement in PLACEMENTS:
        task = open_task(
            tiny(model={"placement": placement, "weights": file, "weights_digest": digest}), HERE
        )
        assert evaluate(task, start(task).model)["accuracy"].item() == accuracy
    assert TrialConfig.from_json(task.config.to_json()) == task.config


def test_weights_that_changed_are_refused(trained: tuple[Path, float]) -> None:
    config = tiny(model={"weights": str(trained[0] / "checkpoint.pt"), "weights_digest": "0" * 32})
    with pytest.raises(InputError, match="have changed since they were chosen"):
        start(open_task(config, HERE))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there are no weights .*name a file, the folder of a trial or export, or the ID of a run"),
        (b"no weights", "cannot be read as weights; it must be a state_dict"),
        ({"weights": 3}, "it holds no mapping of names to tensors"),
    ],
)
def test_what_is_no_file_of_weights(content: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    with pytest.raises(InputError, match=message):
        choose_weights(str(file))


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no weights"):
        choose_weights(str(tmp_path))


def test_nothing_is_published_for_a_backbone_of_the_table() -> None:
    with pytest.raises(
        InputError, match="none published for backbone 'xresnet18'; torchvision:NAME and timm:NAME"
    ):
        TrialConfig(model=Model(weights="default"))
