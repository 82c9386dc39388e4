import math
from pathlib import Path

import pytest

from automl.base.errors import InputError
from automl.training.lr_find import find_learning_rate, plot
from tests.helpers.automl_cases import Regression


def test_suggestion_lies_where_the_loss_falls_and_is_plotted(tmp_path: Path) -> None:
    test = find_learning_rate(Regression(optimizer="sgd", batch_size=80), lowest=1e-5, highest=1.0, steps=60)
    assert len(test.rates) == len(test.losses)
    assert test.rates == sorted(test.rates)
    assert test.rates[0] == 1e-5
    assert test.rates[0] <= test.suggestion <= test.rates[-1]
    index = min(range(len(test.rates)), key=lambda i: abs(math.log(test.rates[i] / test.suggestion)))
    assert test.losses[index + 1] < test.losses[index]
    assert 5e-3 < test.suggestion < 0.5  # One batch holds all points, so chance does not matter.
    file = tmp_path / "lr_find.png"
    plot(find_learning_rate(Regression(), steps=20), file)
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_loss_that_diverges_is_cut_or_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    test = find_learning_rate(Regression(optimizer="sgd"), lowest=1e-4, highest=1e6, steps=60)
    assert 10 < len(test.rates) < 50
    assert test.rates[-1] < 1e5
    assert all(math.isfinite(loss) for loss in test.losses)
    assert max(test.losses) <= 4 * test.losses[0] + 1e-6
    assert test.suggestion < 10
    task = Regression()
    task.y *= float("nan")
    with pytest.raises(InputError, match="not finite"):
        find_learning_rate(task)
