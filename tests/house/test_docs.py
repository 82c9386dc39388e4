"""The documents are true: their Python runs, their commands and options exist, and their files are there."""

import ast
import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import optuna
import pytest
import typer.main

import automl
from automl.cli.main import app
from backbones.contract import check_contract
from search.config import TrialConfig
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
    words = shlex.split(re.sub(r" N$", " 8", line))
    command = COMMANDS[words[1]]
    if len(words) > 2:
        command.make_context(words[1], words[2:])


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


def test_endings_of_searches_are_as_the_command_prints_them() -> None:
    for page, text in DOCUMENTS.items():
        # `automl status` numbers the trials, and names the same one twice.
        twice = r"^best      (?!.*  \d{3,} )(.*?)(?:  \(run.*)?\nbaseline  \1(?:  \(run.*)?$"
        assert not re.search(twice, text, re.M), page
        for block in re.findall(r"^leading\n((?: {10}\d+ .*\n)+)", text, re.M):
            assert ", no attention" not in block, page


def test_the_glossary_has_few_words() -> None:
    words = re.findall(r"^\| [a-z]", DOCUMENTS["docs/glossary.md"], re.MULTILINE)
    assert 20 < len(words) <= 45 + 5  # headings


def test_attributes_of_a_space_are_read() -> None:
    table, code = DOCUMENTS["docs/how-to/own-space.md"].partition("## Attr")[2], (ROOT / "search/space.py")
    assert (names := re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert [name for name in names if f'getattr(draw, "{name}"' not in code.read_text()] == []


def test_readme_and_index_list_the_same_doors() -> None:
    """So does the navigation of the site."""
    of_readme, of_index = (
        DOCUMENTS[page].partition("| you have |")[2].partition("\n\n")[0].replace("(docs/", "(")
        for page in ("README.md", "docs/index.md")
    )
    assert of_readme == of_index
    pages, navigation = re.findall(r"\]\((.*?)\)", of_readme), (ROOT / "mkdocs.yml").read_text()
    assert len(pages) > 5
    assert [page for page in pages if f": {page}\n" not in navigation] == []


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
    assert ").confirm()" in outputs
    assert "MODEL_CARD.md" in outputs
    assert [*tmp_path.glob("exports/tour*/model.onnx")]
    assert (tmp_path / "searches/tour/space.py").read_text().startswith("def two_sites(trial):")
