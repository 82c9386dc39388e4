"""Forty people, ten grey pictures each: from scratch, or from a backbone that was trained on Imagenette?

Two searches with the same trials and epochs, each confirmed with fresh seeds, and `automl compare` on the
two: all by the commands that a person types, and so with their statistics. The pictures are drawn
(`drawn_faces`). The backbone is xresnet18 at 64 px; it is trained here, some ten minutes on two cores, unless
--weights names one.
Needs the archive that AUTOML_TEST_DATA or ../shared/data holds, and half an hour.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from drawn_faces import make_faces
from harness import write_values

DATA = Path(os.environ.get("AUTOML_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
SIZE = 64  # pixels


def automl(*arguments: object) -> Any:
    """What a command answers in JSON, where it was asked for it; its words go on to the terminal."""
    print("automl", *arguments, flush=True)
    command = [str(Path(sys.executable).parent / "automl"), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"automl {arguments[0]} ended with exit code {done.returncode}")
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def backbone(folder: Path) -> Path:
    """An xresnet18 trained on Imagenette, made once in `folder`."""
    file = folder / "searches" / "backbone" / "checkpoint.pt"
    if not file.exists():
        archive = DATA / "imagenette2-128.tgz"
        if not archive.exists():
            sys.exit(
                f"{archive} is not there; name its folder with AUTOML_TEST_DATA, or a backbone with --weights"
            )
        options = ["--data", archive, "--size", SIZE, "--backbone", "xresnet18", "--epochs", 15]
        automl(
            "train", "--dataset", "nette", *options, "--name", "backbone", "--storage", folder / "searches"
        )
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("faces-benchmark"), help="what is made lies there"
    )
    parser.add_argument("--weights", type=Path, help="a backbone that was trained before")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=8)
    chosen = parser.parse_args()
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{(chosen.folder / 'mlflow.db').absolute()}")
    storage = ["--storage", chosen.folder / "searches"]
    photos = chosen.folder / "faces"
    make_faces(photos)
    weights = chosen.weights or backbone(chosen.folder)
    common = ["--data", photos, "--size", SIZE, "--backbone", "xresnet18", "--no-flip"]
    common += [
        "--trials",
        chosen.trials,
        "--epochs",
        chosen.epochs,
        "--resume",
        "auto",
    ]  # goes on where it ended
    found: dict[str, Any] = {}
    for name, more in (("scratch", []), ("backbone", ["--weights", weights])):
        best = automl("search", *common, *more, "--name", name, *storage, "--json")["best"]
        verdict = automl("confirm", "--search", name, "--top", 1, "--seeds", chosen.seeds, *storage, "--json")
        found[name] = {"validation": best["value"], "verdict": verdict["sentence"]}
    (against,) = automl("compare", "scratch", "backbone", *storage, "--json")["comparisons"]
    found["backbone against scratch"] = against
    settings = {key: getattr(chosen, key) for key in ("trials", "epochs", "seeds")}
    write_values("faces", {"settings": {"size": SIZE, **settings}, **found})


if __name__ == "__main__":
    main()
