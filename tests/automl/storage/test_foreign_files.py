"""Files of another author: reading them runs none of their code, contacts nobody and reads no other files."""

import json
import re
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import typer
from mlflow import MlflowClient
from onnx import TensorProto, helper
from PIL import Image

from automl.base import loading, own_imports
from automl.base.errors import InputError
from automl.cli.main import app
from automl.export.predict import run_predict
from automl.export.run_export import run_export
from automl.judge.ledger import Ledger, Program
from automl.storage.folder import find_search
from automl.storage.metadata import SEARCH_FILE
from automl.storage.user_code import is_remembered, remember
from automl.tasks.code_retrieval.search import run_code_search
from automl.tasks.language_modelling import LanguageData, LanguageModel, LanguageTraining
from search.config import TrialConfig
from search.study import STUDY_FILE, open_study, warm_start_study
from tests.helpers import others_slow
from tests.helpers.confirm_cases import RECORDS, fake_confirmation, fake_search
from tests.helpers.report_cases import made_up, save_search

CLAIMS = (
    "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"  # it leaves a file when it is run
)

Cli = Callable[..., tuple[int, str, str]]

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# Each command is in one of these three. The first read files that may name code, and run none of it.
READS: Mapping[str, Sequence[str]] = {
    "status": ["mine"],
    "searches": [],
    "report": ["--search", "mine"],
    "sync": ["mine"],
    "ledger": ["searches"],
    "solve": ["mine"],
    "export": ["--best", "--search", "mine"],
    "predict": ["model", "a.png"],
}
# These run the code of such files if it was named on this machine, or with --trust.
RUNS: Mapping[str, Sequence[str]] = {
    "search": ["--resume", "mine"],
    "confirm": ["--search", "mine", "--again"],
    "train": ["--resume", "a"],
    "referee": ["--resume", "mine"],
}
# These have no such files, and run the code that the command line names.
ALONE = (
    "data",
    "spaces",
    "attentions",
    "check-attention",
    "studies",
    "study",
    "sites",
    "cost",
    "mcp",
    "skill",
)
OF_FILES = {"search", "storage", "resume", "run", "folder", "trust"}  # options of commands with such files

# Code that a configuration may name.
Change = Callable[[dict[str, Any], Path], None]
KINDS: Mapping[str, Change] = {
    "task, a file": lambda config, folder: config.update(task=f"{folder}/planted.py:Task"),
    "task, a module": lambda config, folder: config.update(task="planted:Task"),
    "function, a file": lambda config, folder: config.update(
        task="function", data={}, training={}, model={"backbone": f"{folder}/planted.py:train"}, metric=""
    ),
    "backbone, a file": lambda config, folder: config["model"].update(backbone=f"{folder}/planted.py:Net"),
    "backbone, a module": lambda config, folder: config["model"].update(backbone="planted:Net", code="0"),
    "attention, a file": lambda config, folder: config["model"]["placement"].update(
        stem=f"{folder}/planted.py:Att"
    ),
    "attention, a module": lambda config, folder: config["model"]["placement"].update(
        stem={"type": "planted:Att", "code": "0"}
    ),
}


@pytest.fixture
def workspace(store: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a module that leaves a file when it is run."""
    # An earlier test may have loaded the module of its own folder.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not Path(path, "planted.py").exists()])
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    monkeypatch.setattr(own_imports.beside, "folders", [])
    (tmp_path / "planted.py").write_text(CLAIMS)
    return tmp_path


def has_run(workspace: Path) -> bool:
    return (workspace / "ran").exists() or "planted" in sys.modules


def plant(value: Any, kinds: list[str], workspace: Path) -> Any:
    """Make each configuration in `value` name code, cycling through the kinds."""
    if isinstance(value, list):
        return [plant(item, kinds, workspace) for item in value]
    if not isinstance(value, dict):
        return value
    if "training" in value and "model" in value:
        kinds.append(kinds.pop(0))
        KINDS[kinds[-1]](value, workspace)
        return value
    return {key: plant(item, kinds, workspace) for key, item in value.items()}


def plant_in(file: Path, kinds: list[str], workspace: Path) -> None:
    lines = file.read_text().splitlines() if file.suffix == ".journal" else [file.read_text()]
    file.write_text("".join(json.dumps(plant(json.loads(line), kinds, workspace)) + "\n" for line in lines))


def plant_checkpoint(folder: Path, kind: str, workspace: Path) -> TrialConfig:
    folder.mkdir(parents=True, exist_ok=True)
    config = plant(RECORDS[1].config.to_json(), [kind], workspace)
    empty: dict[str, Any] = {
        key: {} for key in ("profile", "model", "average", "optimizer", "scaler", "generators")
    }
    torch.save({"config": config, "history": [], "epoch": 1, **empty}, folder / "checkpoint.pt")
    return RECORDS[1].config


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a confirmed search."""
    folder = fake_search(tmp_path_factory.mktemp("confirmed"))
    fake_confirmation(folder)
    return folder


@pytest.fixture
def search(confirmed: Path, workspace: Path) -> Path:
    """Return a confirmed search whose files name the module wherever they can name code."""
    folder = shutil.copytree(confirmed, workspace / "searches/mine")
    metadata = json.loads((folder / SEARCH_FILE).read_text())
    metadata["settings"] |= {
        "space": f"{workspace}/planted.py:draw",
        "backbone": "planted:Net",
        "attention": f"ssa,{workspace}/planted.py:Att,planted:Other",
        "sampler": "planted:Sampler",
        "callbacks": [f"{workspace}/planted.py:Callback", "planted:Callback"],
    }
    (folder / SEARCH_FILE).write_text(json.dumps(metadata))
    for file in (STUDY_FILE, f"confirm/{STUDY_FILE}", "confirm/confirm.json"):
        plant_in(folder / file, list(KINDS), workspace)
    plant_in(
        folder / "confirm/verdict.json", list(KINDS)[:1], workspace
    )  # variants of several tasks are not compared
    for trials in (folder / "trials", folder / "confirm/trials"):
        for number in range(21):
            plant_checkpoint(trials / f"{number:04}", "task, a file", workspace)
    program = Program(command=f"python {workspace}/planted.py {{seed}}", folder=str(workspace))
    Ledger(workspace / "searches", create=True).begin_head(program)
    return folder


def test_each_command_is_known_to_read_or_to_run() -> None:
    assert sorted(COMMANDS) == sorted([*READS, *RUNS, *ALONE])
    for name in ALONE:
        flags = {flag.lstrip("-") for parameter in COMMANDS[name].params for flag in parameter.opts}
        assert not OF_FILES & flags, name


@pytest.mark.parametrize("command", READS)
def test_reading_runs_no_code(command: str, search: Path, workspace: Path, cli: Cli) -> None:
    exported_model(workspace / "model", config=json.loads((search / "confirm/confirm.json").read_text())
                   ["variant_set"]["variants"][0]["config"])  # fmt: skip
    Image.new("RGB", (8, 8)).save(workspace / "a.png")
    code, out, err = cli(command, *READS[command])
    assert not has_run(workspace)
    assert code == (2 if command in ("solve", "export", "predict") else 0), (out, err)
    if command in ("solve", "export"):
        assert re.search(r"would run '.*planted.py:.*--trust", err)


def test_syncing_and_warm_starts_run_no_code(search: Path, workspace: Path, cli: Cli) -> None:
    assert cli("sync", "mine")[0] == 0
    study = open_study(find_search("mine", "searches")[0], name="mine")
    # As --warm-start does.
    warm_start_study(open_study(search, name="mine"), study)
    assert not has_run(workspace)


# Settings of a search that name code which `solve` needs.
SETTINGS = ("space", "backbone", "attention")
FORMS = {"a file": "{folder}/planted.py:draw", "a module": "planted:draw"}


def plant_setting(folder: Path, setting: str, form: str) -> None:
    metadata = json.loads((folder / SEARCH_FILE).read_text())
    metadata["settings"] |= {"space": "nette", setting: FORMS[form].format(folder=folder.parents[1])}
    (folder / SEARCH_FILE).write_text(json.dumps(metadata))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_solving_runs_the_code_of_settings_with_trust_alone(
    setting: str, form: str, workspace: Path, cli: Cli
) -> None:
    plant_setting(save_search(workspace / "searches", made_up(9), name="mine"), setting, form)
    code, _, err = cli("solve", "mine")
    assert code == 2
    assert "solving 'mine' would run" in err
    assert not has_run(workspace)
    cli("solve", "mine", "--trust")
    assert has_run(workspace)
    sys.modules.pop("planted", None)


@pytest.mark.parametrize("kind", KINDS)
def test_solving_runs_no_code_of_trials(kind: str, workspace: Path, cli: Cli) -> None:
    folder = save_search(workspace / "searches", made_up(9), name="mine")
    plant_in(folder / STUDY_FILE, [kind], workspace)
    code, _, err = cli("solve", "mine", "--max-params", "1M")
    assert code == 2
    assert "solving 'mine' would run" in err
    assert not has_run(workspace)


# Models of each library that are not on this machine.
AWAY = [*(f"{library}:owner/gone" for library in loading.LIBRARIES), "hf:/moved/model"]


def move_away(value: Any, backbone: str) -> Any:
    """Make each configuration in `value` name a model that is not here."""
    if isinstance(value, list):
        return [move_away(item, backbone) for item in value]
    if not isinstance(value, dict):
        return value
    if "training" in value and "model" in value:
        if backbone.startswith("hf:"):
            sites = [f"block{i}.mixer" for i in (1, 2, 4)] if value["model"]["placement"] else []
            model = LanguageModel(
                backbone=backbone, placement=dict.fromkeys(sites, "linear"), weights="default"
            )
            decoder = TrialConfig(
                task="language-modelling",
                data=LanguageData(path="/gone/texts", tokenizer="/gone/tokenizer.json"),
                model=model,
                training=LanguageTraining(),
                metric="accuracy",
                seed=value["seed"],
            )
            return decoder.to_json()
        value["model"] |= {"backbone": backbone, "options": {}}
        value["data"] |= {"path": "/gone/images"}
        return value
    return {key: move_away(item, backbone) for key, item in value.items()}


@pytest.fixture
def contacts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of all addresses that anybody tries to reach."""
    tried: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        tried.append(arguments)
        raise RuntimeError("the network is down")  # an OSError would be tried again

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


@pytest.mark.parametrize("backbone", others_slow(AWAY, "hf:/moved/model"))
def test_a_model_that_is_not_here_is_read_and_not_run(
    backbone: str, confirmed: Path, workspace: Path, contacts: list[object], cli: Cli
) -> None:
    folder = shutil.copytree(confirmed, workspace / "searches/mine")
    metadata = json.loads((folder / SEARCH_FILE).read_text())
    metadata["settings"] |= {
        "space": "hybrid" if backbone.startswith("hf:") else "nette",
        "backbone": backbone,
    }
    (folder / SEARCH_FILE).write_text(json.dumps(metadata))
    for file in (STUDY_FILE, f"confirm/{STUDY_FILE}", "confirm/confirm.json"):
        lines = (
            (folder / file).read_text().splitlines()
            if file.endswith("journal")
            else [(folder / file).read_text()]
        )
        (folder / file).write_text(
            "".join(f"{json.dumps(move_away(json.loads(line), backbone))}\n" for line in lines)
        )
    for command in ("status", "searches", "report", "sync"):
        code, out, err = cli(command, *READS[command])
        assert code == 0, (command, err)
        assert "damaged" not in out + err
    # These two need the model, and say so.
    for command, arguments in (("solve", READS["solve"]), *list(RUNS.items())[:2]):
        code, _, err = cli(command, *arguments)
        assert code == 2, err
        assert "gone" in err or "/moved/model" in err
        assert "damaged" not in err
        if command == "solve":
            assert not contacts


@pytest.mark.parametrize("kind", KINDS)
def test_reading_a_checkpoint_or_export_runs_no_code(kind: str, workspace: Path) -> None:
    plant_checkpoint(workspace / "searches/a", kind, workspace)
    run = MlflowClient().create_run("0", tags={"automl.checkpoint": str(workspace / "searches/a")})
    with pytest.raises(InputError, match="--trust"):
        run_export("out", run=run.info.run_id)
    model = exported_model(workspace / "model", config=plant(RECORDS[1].config.to_json(), [kind], workspace))
    Image.new("RGB", (8, 8)).save(workspace / "a.png")
    for read in (
        lambda: run_predict(model, [workspace / "a.png"]),
        lambda: run_code_search(model, ["query"], corpus=workspace),
    ):
        with pytest.raises(InputError):
            read()
    assert not has_run(workspace)


@pytest.mark.parametrize(
    "words",
    [[name, *arguments] for name, arguments in RUNS.items() if name != "referee"]
    + [[name, *READS[name]] for name in ("export", "solve")],
    ids=" ".join,
)
def test_code_of_others_runs_with_trust_alone_and_is_named(
    words: list[str], search: Path, workspace: Path, cli: Cli
) -> None:
    """docs/explanation/security.md documents this."""
    plant_checkpoint(workspace / "searches/a", "task, a file", workspace)
    code, _, err = cli(*words)
    assert code == 2
    assert f"{workspace}/planted.py:" in err
    assert "--trust" in err
    assert not has_run(workspace)
    code, _, err = cli(*words, "--trust")
    assert code == 2
    assert f"{workspace}/planted.py:" in err
    assert has_run(workspace)
    sys.modules.pop("planted", None)


@pytest.mark.parametrize("words", [[name, *RUNS[name]] for name in ("referee", "confirm")], ids=" ".join)
def test_commands_of_others_run_with_trust_alone(
    words: list[str], workspace: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Replace the function that would run them, as it starts Ray."""
    begun: list[str] = []

    def stop(folder: Path, *_: object) -> None:
        begun.append(folder.parent.name)
        raise RuntimeError

    for module in ("judge.run_confirm", "tasks.command.referee"):
        monkeypatch.setattr(f"automl.{module}.run_trainings", stop)
    cli("referee", "--metric=x=(.*)", "--name=mine", "--seeds=2", "--noise", "--baseline=true {seed}")
    assert begun == ["mine"]
    monkeypatch.setenv("AUTOML_CACHE", str(workspace / "of another user"))
    code, _, err = cli(*words)
    assert (code, begun) == (2, ["mine"])
    assert "would run 'the command in" in err
    cli(*words, "--trust")
    assert begun == ["mine", "mine"]


def test_file_is_trusted_until_it_changes(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_CACHE", str(workspace / "cache"))
    own, other = f"{workspace}/planted.py:Net", f"{workspace}/other.py:Net"
    (workspace / "other.py").write_text(CLAIMS)
    assert not is_remembered([own])
    remember([own, "planted:Net"])
    assert is_remembered([own])
    assert not is_remembered([f"{workspace}/planted.py:system"]), "another name in the file"
    assert not is_remembered([own, other]), "the same content elsewhere is another file"
    assert is_remembered(["planted:Net"]), "the file that Python finds for a module"
    assert not is_remembered(["planted:Other", "gone.module:Net"])
    assert not is_remembered([])
    (workspace / "planted.py").write_text(CLAIMS + "\n")
    assert not is_remembered([own])
    assert not is_remembered(["planted:Net"])
    assert not has_run(workspace)


def exported_model(
    model: Path, *, config: Mapping[str, Any] | None = None, weights: onnx.TensorProto | None = None
) -> Path:
    """Export a model that returns its weights."""
    model.mkdir()
    ends = (
        helper.make_tensor_value_info(name, TensorProto.UINT8, [10]) for name in ("images", "probabilities")
    )
    weights = weights or helper.make_tensor("w", TensorProto.UINT8, [10], bytes(10), raw=True)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["probabilities"])], "g", [next(ends)], [next(ends)], [weights]
    )
    graph_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (model / "model.onnx").write_bytes(graph_model.SerializeToString())
    metadata = {
        "labels": [str(i) for i in range(10)],
        "config": config or {"data": {"size": 32}},
        "graphs": {"model": {"inputs": [], "outputs": [], "details": {}}},
    }
    (model / "config.json").write_text(json.dumps(metadata))
    return model


@pytest.mark.parametrize("location", ["../secret", "{folder}/secret", "link"])
def test_model_reads_no_file_outside_its_folder(location: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(range(10)))
    weights = onnx.TensorProto(
        name="w", data_type=TensorProto.UINT8, dims=[10], data_location=TensorProto.EXTERNAL
    )
    weights.external_data.add(key="location", value=location.format(folder=tmp_path))
    model = exported_model(tmp_path / "model", weights=weights)
    (model / "link").symlink_to(tmp_path / "secret")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="External data path"):
        run_predict(model, [tmp_path / "a.png"])
