"""Optional packages: without them all other tasks work, and the message names the extra."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import backbones
from automl.base.errors import InputError
from automl.base.lazy import EXTRAS, optional
from automl.tasks.code_retrieval.data.tokenizer import train_tokenizer
from automl.tasks.detection import score as detection_evaluator
from automl.tasks.detection.data.masks import encode_masks
from automl.tasks.language_modelling import hugging_face
from automl.tasks.language_modelling.data.tokens import train_pairs

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, PACKAGES = PYPROJECT["project"], PYPROJECT["tool"]["importlinter"]["root_packages"]


@pytest.fixture
def missing(monkeypatch):
    """Hide packages and their modules."""

    def hide(*packages):
        for package in packages:
            monkeypatch.setitem(sys.modules, package, None)

    return hide


@pytest.mark.parametrize(
    ("extra", "packages", "use"),
    [
        ("code", ["tokenizers"], lambda: train_tokenizer(["add one"], 10)),
        ("detection", ["pycocotools", "pycocotools.mask"], lambda: encode_masks(np.ones((1, 2, 2), bool))),
        ("detection", ["pycocotools", "pycocotools.coco"], lambda: detection_evaluator.coco.COCO),
        ("detection", ["pycocotools", "pycocotools.cocoeval"], lambda: detection_evaluator.cocoeval.COCOeval),
        ("hf", ["transformers"], lambda: hugging_face.transformers.AutoConfig),
        ("segmentation", ["segmentation_models_pytorch"], lambda: backbones.find("smp:Unet")),
        ("text", ["tokenizers"], lambda: train_pairs([b"ab ab"], 258)),
    ],
)
def test_message_about_a_missing_package_names_the_install_command(extra, packages, use, missing):
    use()
    missing(*packages)
    with pytest.raises(InputError) as error:
        use()
    package = packages[0].partition(".")[0]
    assert str(error.value) == (
        f"{EXTRAS[extra]} needs the package {package}, which is not installed. Run: "
        f'pip install "attention-automl[{extra}]"'
    )


def test_missing_packages_differ_from_others(tmp_path, monkeypatch):
    (tmp_path / "mcp.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mcp", raising=False)
    with pytest.raises(InputError, match=r"mcp, and Python finds .*mcp.py first, which has no mcp.lowlevel"):
        _ = optional("mcp.lowlevel", "mcp").Server


ALONE = """
import importlib, os, sys
for module, chain in (use.split(":") for use in sys.argv[1:]):
    if (child := os.fork()) == 0:
        value = importlib.import_module(module)
        for name in chain.split("."):
            value = getattr(value, name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{module}.{chain} is missing where nothing else was imported")
"""
SLOW = ("transformers", "segmentation_models_pytorch", "mcp")  # importing them takes seconds


@cache
def lazy_uses():
    """Return what the code reads of optional packages, such as `tokenizers:models.BPE`."""
    uses = set()
    contents = [f.read_text("utf-8") for package in PACKAGES for f in (ROOT / package).rglob("*.py")]
    for nodes in (list(ast.walk(ast.parse(content))) for content in contents if "optional(" in content):
        proxies = {
            ast.unparse(node.targets[0]): ast.unparse(node.value)
            for node in nodes
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("optional(")
        }
        for text in (ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)):
            name, _, chain = text.partition(".")
            proxy = re.fullmatch(
                r"optional\('([\w.]+)', '\w+'\)\.([\w.]+)", f"{proxies.get(name, name)}.{chain}"
            )
            uses |= {":".join(proxy.groups())} if proxy else set()
    return sorted(uses)


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(package, marks=[pytest.mark.slow("another case")] if package in SLOW else [])
        for package in sorted({use.partition(":")[0].partition(".")[0] for use in lazy_uses()})
    ],
)
def test_each_lazy_attribute_exists_where_nothing_else_was_imported(package):
    uses = [use for use in lazy_uses() if re.match(rf"{package}\b", use)]
    done = subprocess.run([sys.executable, "-c", ALONE, *uses], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
