"""What a search does with data and nothing else."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from automl.search import default_space
from automl.search.default_space import fit


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
def test_the_size_follows_the_images(sizes: list[tuple[int, int]], side: int, tmp_path: Path) -> None:
    found = fit(photographs(tmp_path / "photos", *sizes))
    assert found.settings == {"space": "folder", "backbone": "xresnet18", "size": side}
    assert f"backbone xresnet18 at {side} px, since there are " in found.why


def test_what_is_given_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = photographs(tmp_path / "photos", (50, 50))
    assert fit(photos, backbone="timm:test_vit").settings == {"space": "folder", "size": 48}
    assert fit(photos, size=24).settings == {"space": "folder", "backbone": "xresnet18"}
    monkeypatch.setattr(default_space, "MANY", 1)
    assert fit(photos, size=24).settings == {"space": "folder"}
    assert fit(photos, size=24).why == ""


def test_stereo_pairs_get_their_space(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("left,right,disparity\nl.png,r.png,d.pfm\n")
    assert fit(str(tmp_path / "pairs.csv")).settings == {"space": "sceneflow"}
