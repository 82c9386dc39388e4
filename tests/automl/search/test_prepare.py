"""Settings that a search chooses from its data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from automl.base.errors import InputError
from automl.config.nouns import Question
from automl.config.settings import Settings
from automl.search.prepare import fit, fit_epochs, prepare
from tests.helpers.automl_cases import opened


def photographs(folder: Path, *sizes: tuple[int, int]) -> str:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i, size in enumerate(sizes * 3):
            pixels = np.random.default_rng([i, len(label), *size]).integers(0, 256, (size[1], size[0], 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / label / f"{i}.png")
    return str(folder)


@pytest.mark.parametrize(
    ("sizes", "side"),
    [([(20, 30)], 32), ([(92, 112)], 64), ([(300, 200)], 128), ([(40, 300), (90, 90), (120, 94)], 64)],
)
def test_size_depends_on_the_images(sizes: list[tuple[int, int]], side: int, tmp_path: Path) -> None:
    space = fit(photographs(tmp_path / "photos", *sizes))
    assert space.settings == {"space": "folder", "backbone": "xresnet18", "size": side}
    assert f"backbone xresnet18 at {side} px, since there are " in space.why


def test_explicit_settings_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = photographs(tmp_path / "photos", (50, 50))
    assert fit(photos, backbone="timm:test_vit").settings == {"space": "folder", "size": 48}
    assert fit(photos, size=24).settings == {"space": "folder", "backbone": "xresnet18"}
    monkeypatch.setattr("automl.tasks.image_classification.fit.MANY", 1)
    assert fit(photos, size=24).settings == {"space": "folder"}
    assert fit(photos, size=24).why == ""


@pytest.mark.parametrize(
    "settings", [{"sampler": "tpe"}, {"sampler": "random", "objective": "accuracy,params"}]
)
def test_a_search_that_compares_no_placements_is_never_decided(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--stop decided needs --sampler placement or --init shared"):
        prepare(Settings(**{"space": "digits", "stop": "decided", **settings}).parsed)


def test_stereo_pairs_get_their_space(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("left,right,disparity\nl.png,r.png,d.pfm\n")
    assert fit(str(tmp_path / "pairs.csv")).settings == {"space": "sceneflow"}


@pytest.mark.parametrize(
    ("settings", "training", "epochs"),
    [
        ({"data": "photos"}, {}, 43),  # seven steps an epoch
        ({"subset": 0.2}, {"epochs": 42}, 43),
        ({"data": "photos"}, {"epochs": 5, "accumulate": 3}, 150),
        ({"data": "photos"}, {"epochs": 43}, None),
        ({"data": "photos", "epochs": 1}, {}, None),
        ({"data": "photos", "space": "mine.py:space"}, {}, None),
        ({}, {}, None),  # the bundled data have epochs of their own
    ],
)
def test_training_with_few_steps_gets_more_epochs(
    settings: dict[str, Any], training: dict[str, Any], epochs: int | None
) -> None:
    fitted = fit_epochs(Question(**{"space": "folder", **settings}), opened(training=training))
    if epochs is None:
        assert fitted is None
    else:
        assert fitted.settings == {"epochs": epochs}
        assert "steps of" in fitted.why
        assert "set another number with --epochs" in fitted.why
