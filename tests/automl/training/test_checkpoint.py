import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from automl.base.errors import InputError
from automl.storage.storage import Storage
from automl.training import checkpoint
from automl.training.loop import TrainingState, fit, start
from search.config import TrialConfig
from tests.helpers.automl_cases import CPU, Regression


@pytest.fixture(scope="module")
def state() -> TrainingState:
    task = Regression(epochs=1)
    state = start(task)
    list(fit(task, state))
    return state


CONFIG = TrialConfig(seed=3)
HISTORY = [{"epoch": 1, "error": 0.25}]
PROFILE = {"params": 4, "time_ratio": 1.25}


@pytest.fixture
def saved(tmp_path: Path, state: TrainingState) -> Path:
    checkpoint.save(Storage(tmp_path), CONFIG, state, HISTORY, PROFILE)
    return tmp_path / checkpoint.CHECKPOINT_FILE


def test_round_trip(saved: Path, state: TrainingState) -> None:
    drawn = torch.rand(3)
    content = checkpoint.read(Storage(saved.parent), CPU)
    assert TrialConfig.from_json(content["config"]) == CONFIG
    assert (content["history"], content["profile"]) == (HISTORY, PROFILE)
    other = start(Regression(epochs=1))
    torch.manual_seed(4711)
    checkpoint.restore(other, content)
    assert torch.equal(torch.rand(3), drawn)
    assert other.epoch == state.epoch == 1
    for name, value in state.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[name], value)
    restored, expected = other.optimizer.state_dict()["state"], state.optimizer.state_dict()["state"]
    assert restored.keys() == expected.keys()
    assert all(torch.equal(restored[i][key], expected[i][key]) for i in restored for key in restored[i])


def test_checkpoint_of_a_finished_training_has_only_weights(tmp_path: Path) -> None:
    task = Regression(epochs=1, average=0.5)
    state = start(task)
    list(fit(task, state))
    for finished in (False, True):
        checkpoint.save(Storage(tmp_path), task.config, state, HISTORY, PROFILE, finished=finished)
        content = checkpoint.read(Storage(tmp_path), CPU)
        for name, value in checkpoint.scored_weights(content).items():
            assert torch.equal(value, state.scored.state_dict()[name])
        assert all(content[key] for key in ("average", "optimizer", "generators")) != finished
        assert any(content[key] for key in ("average", "optimizer", "generators")) != finished


class Dangerous:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


def rewrite(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a function that replaces the content of a checkpoint by the result of `change`."""

    def write(file: Path) -> None:
        torch.save(change(torch.load(file, weights_only=True)), file)

    return write


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "random": lambda file: file.write_bytes(os.urandom(5000)),
    "a tensor": rewrite(lambda content: torch.zeros(3)),
    "without optimizer": rewrite(lambda content: {k: v for k, v in content.items() if k != "optimizer"}),
    "config with an unknown key": rewrite(lambda content: content | {"config": {"sede": 3}}),
    "config that cannot work": rewrite(lambda content: content | {"config": {"training": {"epochs": 0}}}),
    "model is a list": rewrite(lambda content: content | {"model": []}),
    "history is one record": rewrite(lambda content: content | {"history": content["history"][0]}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported(damage: str, saved: Path) -> None:
    DAMAGES[damage](saved)
    with pytest.raises(InputError, match=re.escape(str(saved))) as error:
        checkpoint.read(Storage(saved.parent), CPU)
    assert "is corrupt or in an unsupported format; train the trial again" in str(error.value)
    assert "\n" not in str(error.value)


def test_loading_executes_no_code(saved: Path, tmp_path: Path) -> None:
    rewrite(lambda content: content | {"profile": Dangerous(tmp_path / "hacked")})(saved)
    with pytest.raises(InputError, match="corrupt or in an unsupported format"):
        checkpoint.read(Storage(saved.parent), CPU)
    assert not (tmp_path / "hacked").exists()
    torch.load(saved, weights_only=False)  # Loading the file unsafely does execute the code.
    assert (tmp_path / "hacked").exists()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_is_reported_or_harmless(data: st.DataObject, saved: Path) -> None:
    good = saved.read_bytes()
    position = data.draw(st.integers(0, len(good) - 1))
    rewrite = bytearray(good)
    rewrite[position] ^= data.draw(st.integers(1, 255))
    damaged = saved.parent / "damaged"
    damaged.mkdir(exist_ok=True)
    (damaged / checkpoint.CHECKPOINT_FILE).write_bytes(rewrite)
    try:
        content = checkpoint.read(Storage(damaged), CPU)
    except InputError:
        return
    TrialConfig.from_json(content["config"])


def test_a_failed_write_keeps_the_old_file(
    saved: Path, state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def write_half(content: object, file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", write_half)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(Storage(saved.parent), CONFIG, state, HISTORY)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
