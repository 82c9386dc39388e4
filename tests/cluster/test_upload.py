"""Files that `ray job submit --working-dir .` sends from a used checkout."""

import shutil
from pathlib import Path
from zipfile import ZipFile

from tests.helpers.private_names import pack_working_dir

ROOT = Path(__file__).parents[2]


def test_only_the_code_is_sent(tmp_path):
    checkout, package = tmp_path / "checkout", tmp_path / "package.zip"
    for name in (
        "automl/search/run_search.py",
        "automl/__pycache__/search.pyc",
        ".git/objects/pack",
        ".venv/bin/python",
        "searches/first/study.journal",
        "exports/first/model.onnx",
        "mlruns/1/model",
        "mlflow.db",
        "cluster/manifests/mlflow.env",
    ):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("")
    for name in (".gitignore", ".rayignore"):
        shutil.copy(ROOT / name, checkout)
    pack_working_dir(checkout, package)
    with ZipFile(package) as archive:
        assert {name for name in archive.namelist() if not name.endswith("/")} == {
            ".gitignore",
            ".rayignore",
            "automl/search/run_search.py",
        }
