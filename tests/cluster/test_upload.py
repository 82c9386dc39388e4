"""What `ray job submit --working-dir .` sends from a checkout that was worked in."""

import logging
import shutil
from pathlib import Path
from zipfile import ZipFile

from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package

ROOT = Path(__file__).parents[2]


def test_only_the_code_is_sent(tmp_path):
    checkout, package = tmp_path / "checkout", tmp_path / "package.zip"
    for name in (
        "automl/search/run.py",
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
    shutil.copy(ROOT / ".gitignore", checkout)
    create_package(
        str(checkout),
        package,
        include_gitignore=True,
        excludes=get_runtime_env_default_excludes(),
        logger=logging.getLogger("test"),
    )
    with ZipFile(package) as sent:
        assert {name for name in sent.namelist() if not name.endswith("/")} == {
            ".gitignore",
            "automl/search/run.py",
        }
