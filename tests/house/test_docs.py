"""The documents are true: their Python runs, their commands and options exist, and their files are there."""

import ast
import importlib
import inspect
import io
import re
import shlex
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import MagicMock

import nbformat
import optuna
import pytest
import typer.main

import automl
from automl.callbacks.user import UserCallbacks
from automl.cli.main import app
from backbones.contract import check_contract
from search.config import TrialConfig
from search.record import SearchRecord, State, TrialRecord
from search.space import draw_randomly, load_space

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *PAGES]}
LINES = 200  # of a page that is written by hand
GENERATED = ("docs/reference/backbones.md", "docs/explanation/language-findings.md")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OURS = ("attention", "backbones", "search", "cluster", "automl")


def find_commands() -> Iterator[tuple[str, str]]:
    """Return each page with each of its `automl` commands, in blocks of code or between backticks."""
    for page, text in DOCUMENTS.items():
        for line in text.splitlines():
            for code in [line, *re.findall(r"`([^`]+)`", line)]:
                command = re.sub(r"^.*?(python -m automl\.search|slurm\.sh) ", "automl search ", code)
                command = re.sub(r"^.*?-- (env .* )?(?=automl )", "", command.partition("  #")[0].strip())
                command = re.sub(r"^ray exec \S+ '(automl .*)'$", r"\1", command)
                if re.match(r"automl [a-z][a-z-]+( |$)", command) and "`" not in command:
                    yield page, command


@pytest.mark.parametrize(("page", "line"), sorted(set(find_commands())))
def test_every_command_is_understood(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parse a command with its values. One that is named without arguments only has to exist."""
    monkeypatch.chdir(tmp_path)
    Path("photos.yaml").write_text("trials: 8\n")
    words = shlex.split(re.sub(r" N$", " 8", line))
    command = COMMANDS[words[1]]
    if len(words) > 2:
        command.make_context(words[1], words[2:])


def test_guides_have_many_commands_and_blocks() -> None:
    assert len(set(find_commands())) > 150
    assert {line.split()[1] for _, line in find_commands()} == set(COMMANDS)
    text = "\n".join(block for _, block in find_blocks())
    for name in ("automl.run_search", "automl.load", "automl.sites", "automl.insert"):
        assert f"{name}(" in text
    for name in ("confirm", "report", "export", "predict"):
        assert f"result.{name}(" in text
    block = next(block for page, block in find_blocks() if page == "README.md")
    imports = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["import automl"]
    (code,) = [block for _, block in find_blocks() if block.startswith("import torch, torchvision\n")]
    exec(code.replace("print", "list"), {})


def find_blocks() -> Iterator[tuple[str, str]]:
    """Return each page with each of its blocks of Python."""
    for page, text in DOCUMENTS.items():
        for block in re.findall(r"^```python\n(.*?)^```", text, re.S | re.M):
            yield page, block


def read_block(first: str) -> str:
    """Return the block of Python whose first line this is."""
    (block,) = [block for _, block in find_blocks() if block.startswith(f"{first}\n")]
    return block


@pytest.mark.parametrize(("page", "block"), list(find_blocks()))
def test_every_block_fits_the_code(page: str, block: str) -> None:
    """Its imports from this project exist, and its calls of `automl` fit the functions' parameters."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            module = importlib.import_module(node.module or "")
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []
        elif isinstance(node, ast.Call) and re.fullmatch(r"automl\.\w+", ast.unparse(node.func)):
            function = getattr(automl, ast.unparse(node.func).removeprefix("automl."))
            names = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            inspect.signature(function).bind(*node.args, **names)


@pytest.mark.parametrize("page", DOCUMENTS)
def test_a_page_is_short(page: str) -> None:
    if page not in GENERATED:
        assert len(DOCUMENTS[page].splitlines()) <= (120 if page == "README.md" else LINES)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_of_a_document_outside_of_the_site_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text) + re.findall(r"\bdocs/[\w./-]+\.\w+", text)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_space_and_backbone_of_the_guides_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_space.py").write_text(read_block("# my_space.py"))
    monkeypatch.chdir(tmp_path)
    space = load_space("my_space.py:late_stages")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    study.enqueue_trial(dict(space.baseline))
    configs = [space(study.ask()) for _ in range(5)]
    assert all(isinstance(config, TrialConfig) for config in configs)
    assert not configs[0].model.placement
    assert any(config.model.placement for config in configs)
    (tmp_path / "mine.py").write_text(read_block("# mine.py"))
    space = load_space("folder", f"{tmp_path}/mine.py:Net", 32)
    drawn = [config for _, config in draw_randomly(space, 10)]
    assert {config.data.source for config in drawn} == {"folder"}
    assert any(config.model.placement for config in drawn)


@pytest.mark.parametrize("shape", [(8, 8), (30,)], ids=str)
def test_the_attention_of_the_guide_keeps_its_contract(shape: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(read_block("# gate.py"))
    spec = automl.Spec(f"{tmp_path}/gate.py:Gate", {"reduction": 4, "pooling": "max"})
    site = automl.Site(name="stem", path="stem", channels=16, stride=1, resolution=shape)
    assert [check.message for check in check_contract(spec, site) if not check.passed] == []


def test_the_callback_of_the_guide_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb_runs.py").write_text(read_block("# wandb_runs.py"))
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


sys.path.append(str(ROOT / "scripts"))

import house  # noqa: E402
import tour  # noqa: E402

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def test_picture_is_current_and_whole():
    assert house.IMAGE.read_text() == house.draw(), "run `python scripts/house.py`"
    packages, layers, _ = house.read_contracts()
    names = {*packages, *(f"automl.{name}" for layer in layers for name in layer)}
    assert names == set(house.PURPOSES)
    assert len(TEXT.splitlines()) <= 200


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w.-]+/[\w./-]*)`|\]\(([^):]+)\)", TEXT))))
def test_paths_exist(path):
    assert (ROOT / "".join(path)).exists()


FOLDERS = ("attention", "automl", "backbones", "benchmarks", "cluster", "docs", "scripts", "search", "tests")
TEXTS = (
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "mkdocs.yml",
    "pyproject.toml",
)
PATH = re.compile(rf"(?<![\w./<{{:-])(?:{'|'.join(FOLDERS)})/[\w./*-]*\w(?!\w*[$<{{])")
NAME = re.compile(r"(?<![\w./<{*:-])\w+\.(?:py|md)\b(?!\.\w)")
# Names that stand for a file of the user, and what an export writes.
EXAMPLES = {
    "eval.py",
    "file.py",
    "FILE.py",
    "mine.py",
    "name.py",
    "new.py",
    "script.py",
    "sitecustomize.py",
    "MODEL_CARD.md",
}
SECRET = "cluster/manifests/mlflow.env"  # which the user writes


def list_files(folder: str) -> list[Path]:
    return [file for file in sorted((ROOT / folder).rglob("*")) if file.suffix in (".py", ".md")]


def read_texts(file: Path) -> Iterator[str]:
    """Return the docstrings and comments of a module, or the whole of another file."""
    text = file.read_text()
    if file.suffix != ".py":
        yield text
    elif PATH.search(text) or NAME.search(text):  # to parse all files takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def find(pattern: re.Pattern[str], files: Iterable[Path]) -> set[tuple[str, str]]:
    """Return each file with what it names."""
    return {
        (str(file.relative_to(ROOT)), name)
        for file in files
        for text in read_texts(file)
        for name in pattern.findall(text)
    }


def test_each_path_and_name_exists() -> None:
    named = find(
        PATH, [*(file for folder in FOLDERS for file in list_files(folder)), *map(ROOT.joinpath, TEXTS)]
    )
    assert len(named) > 300
    assert {(file, path) for file, path in named if not any(ROOT.glob(path)) and path != SECRET} == set()
    # Pages of the site and the README are left out, since they name files of the reader.
    known = {file.name for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")} | {
        *TEXTS,
        "CHANGELOG.md",
    }
    files = [file for folder in FOLDERS if folder != "docs" for file in list_files(folder)]
    named = find(NAME, [*files, *(ROOT / name for name in TEXTS if name != "README.md")])
    assert {pair for pair in named if pair[1] not in known | EXAMPLES} == set()
    citation = (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for key, value in {"title": "name", "version": "version", "license": "license"}.items():
        assert re.search(rf"^{key}: (.*)$", citation, re.M)[1] == project[value]  # type: ignore[index]


LARGEST = 300_000  # bytes


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(tour.NOTEBOOK, as_version=4)


def test_committed_notebook_is_small_and_its_imports_exist(notebook):
    assert tour.NOTEBOOK.stat().st_size < LARGEST
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert len(outputs) >= 6
    assert not any(path in str(outputs) for path in ("/home/", "/root/", "/tmp/", "site-packages"))
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    compile(code, "tour", "exec")
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    assert len(imports) > 4
    for node in imports:
        module = importlib.import_module(node.module)
        for alias in node.names:
            if not hasattr(module, alias.name):
                importlib.import_module(f"{node.module}.{alias.name}")


@pytest.mark.slow("minutes")
@pytest.mark.timeout(900)
def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    notebook = tour.run_tour(tmp_path)
    outputs = str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    assert "run_confirm(" in outputs
    assert "MODEL_CARD.md" in outputs
    assert (tmp_path / "exports/tour/model.onnx").exists()
    assert (tmp_path / "searches/tour/space.py").read_text().startswith("def two_places(trial):")
