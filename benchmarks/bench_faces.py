"""Compare searches from scratch and from a pretrained backbone, on ten grey pictures of each of forty people.

Two searches with the same trials and epochs are confirmed with fresh seeds. The finalists are compared with
the statistics of a confirmation, pair by pair of the common seeds. The pictures are drawn (`drawn_faces`).
The backbone is xresnet18 at 64 px. Unless --weights names one, it is first trained on Imagenette, for some
ten minutes on two cores. The archive must be in the folder AUTOML_TEST_DATA or in ../shared/data. Takes half
an hour.
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

from automl.base.serialise import to_json
from automl.judge.statistics import paired
from search.class_metrics import ACCURACY

DATA = Path(os.environ.get("AUTOML_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
SIZE = 64  # pixels


def automl(*arguments: object) -> Any:
    """Run a command and return its output, parsed if it has --json. Its messages are shown."""
    print("automl", *arguments, flush=True)
    command = [str(Path(sys.executable).parent / "automl"), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"automl {arguments[0]} ended with exit code {done.returncode}")
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def train_backbone(folder: Path) -> Path:
    """Train an xresnet18 on Imagenette once in `folder`, and return its checkpoint."""
    file = folder / "searches" / "backbone" / "checkpoint.pt"
    if not file.exists():
        archive = DATA / "imagenette2-128.tgz"
        if not archive.exists():
            sys.exit(f"{archive} does not exist; set AUTOML_TEST_DATA to its folder, or use --weights")
        options = ["--data", archive, "--size", SIZE, "--backbone", "xresnet18", "--epochs", 15]
        automl(
            "train", "--dataset", "nette", *options, "--name", "backbone", "--storage", folder / "searches"
        )
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("faces-benchmark"), help="folder of the outputs")
    parser.add_argument("--weights", type=Path, help="a trained backbone")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{(options.folder / 'mlflow.db').absolute()}")
    storage = ["--storage", options.folder / "searches"]
    photos = options.folder / "faces"
    make_faces(photos)
    weights = options.weights or train_backbone(options.folder)
    common = ["--data", photos, "--size", SIZE, "--backbone", "xresnet18", "--no-flip"]
    common += ["--trials", options.trials, "--epochs", options.epochs, "--resume", "auto"]
    results: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    for name, more in (("scratch", []), ("backbone", ["--weights", weights])):
        best = automl("search", *common, *more, "--name", name, *storage, "--json")["best"]
        verdict = automl(
            "confirm", "--search", name, "--top", 1, "--seeds", options.seeds, *storage, "--json"
        )
        results[name] = {"validation": best["value"], "verdict": verdict["headline"]}
        scores[name] = next(v["scores"] for v in verdict["variants"] if v["name"] == verdict["finalist"])
    both = scores["scratch"].keys() & scores["backbone"].keys()
    gaps = [100 * (scores["backbone"][seed] - scores["scratch"][seed]) for seed in sorted(both, key=int)]
    results["backbone against scratch"] = to_json(paired(gaps, margin=ACCURACY.margin))
    settings = {key: getattr(options, key) for key in ("trials", "epochs", "seeds")}
    write_values("faces", {"settings": {"size": SIZE, **settings}, **results})


if __name__ == "__main__":
    main()
