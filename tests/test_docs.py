"""What the documents show is true: their Python runs, and their commands and options exist."""

import ast
import inspect
import re
import shlex
import sys
from pathlib import Path
from unittest.mock import MagicMock

import optuna
import pytest
import typer.main

import automl
from automl.callbacks.user import UserCallbacks
from automl.cli.main import app
from search.callback import SearchRecord
from search.config import TrialConfig
from search.record import State, TrialRecord
from search.space import random_draws
from search.spaces import load

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "docs/guide.md",
    "docs/cluster.md",
    "docs/code-search.md",
    "docs/detection.md",
    "docs/stereo.md",
    "docs/studies.md",
]


def commands():
    for document in DOCUMENTS:
        for line in (ROOT / document).read_text().splitlines():
            line = line.partition("  #")[0].strip()
            if line.startswith("    automl ") or line.startswith("automl "):
                yield document, line.strip()
            elif "python -m automl.search" in line and not line.startswith("`"):
                yield document, "automl search" + line.partition("automl.search")[2]
            elif line.startswith("    ray ") and "automl search " in line:
                yield document, "automl search " + line.partition("automl search ")[2]
            elif line.startswith("    sbatch ") and "slurm.sh " in line:
                yield document, "automl search " + line.partition("slurm.sh ")[2]


@pytest.mark.parametrize(("document", "line"), [c for c in commands() if "`" not in c[1]])
def test_every_command_exists_with_its_options(document, line):
    words = shlex.split(line)
    command = typer.main.get_command(app).commands[words[1]]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    for word in words[2:]:
        if word.startswith("--"):
            assert word in known, line


def calls():
    """Each call of a function of `automl` in the documents' Python."""
    for document in ("README.md", "docs/guide.md"):
        for block in re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("automl."):
                    yield document, node


def test_every_call_fits_the_function():
    names = set()
    for document, call in calls():
        function = getattr(automl, ast.unparse(call.func).removeprefix("automl."))
        names.add(function.__name__)
        signature = inspect.signature(function)
        try:
            signature.bind(*call.args, **{one.arg: one.value for one in call.keywords if one.arg})
        except TypeError as error:
            pytest.fail(f"{document}: {ast.unparse(call)}: {error}")
    assert names >= {"run_search", "run_confirm", "run_export", "run_predict", "sites", "insert"}


def test_the_example_of_the_readme_imports_automl_alone():
    block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[0]
    imports = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["import automl"]


def test_the_space_of_the_guide_works(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(# my_space.py\n.*?)```", (ROOT / "docs/guide.md").read_text(), re.S)
    (tmp_path / "my_space.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    space = load("my_space.py:late_stages")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    study.enqueue_trial(dict(space.baseline))
    configs = [space(study.ask()) for _ in range(5)]
    assert all(isinstance(config, TrialConfig) for config in configs)
    assert not configs[0].model.placement
    assert any(config.model.placement for config in configs)


def test_the_backbone_of_the_guide_works(tmp_path):
    (code,) = re.findall(r"```python\n(# mine.py\n.*?)```", (ROOT / "docs/guide.md").read_text(), re.S)
    (tmp_path / "mine.py").write_text(code)
    space = load("folder", f"{tmp_path}/mine.py:Net", 32)
    drawn = [config for _, config in random_draws(space, 10)]
    assert {config.data.source for config in drawn} == {"folder"}
    assert any(config.model.placement for config in drawn)


def test_the_callback_of_the_guide_works(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(# wandb_runs.py\n.*?)```", (ROOT / "docs/guide.md").read_text(), re.S)
    (tmp_path / "wandb_runs.py").write_text(code)
    wandb = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    called = UserCallbacks([f"{tmp_path}/wandb_runs.py:WandbRuns"])
    called.on_search_start(
        SearchRecord(name="mine", folder=tmp_path, storage="s", metric="loss", maximize=False, trials=1)
    )
    trial = TrialRecord(3, TrialConfig())
    called.on_trial_start(trial)
    trial.history.append({"epoch": 1, "loss": 0.5})
    called.on_epoch_end(trial)
    trial.state = State.COMPLETE
    called.on_trial_end(trial)
    run = wandb.init.return_value
    assert wandb.init.call_args.kwargs["group"] == "mine"
    run.log.assert_called_once_with({"epoch": 1, "loss": 0.5}, step=1)
    run.finish.assert_called_once_with(exit_code=0)


def test_the_insertion_of_the_readme_works():
    (code,) = re.findall(
        r"```python\n(import torch, torchvision\n.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    exec(code.replace("print", "list"), {})
