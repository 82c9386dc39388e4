"""Output of `automl`, above all for invalid arguments."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main

from attention import ATTENTIONS
from automl.base.errors import InputError
from automl.base.loading import load_object
from automl.cli.command import as_command
from automl.cli.main import app
from automl.config.settings import Settings
from automl.search import run_search as search
from automl.storage.folder import new_folder
from search.class_metrics import ACCURACY
from search.drawn import Drawn
from search.space import SPACES
from search.trial_scheduler import Plan
from tests.helpers.automl_cases import Cli

SCREEN = 50  # lines of 80 columns
COMMANDS = tuple(typer.main.get_command(app).commands)
QUARTER = "model.options.width=0.25"
DIGITS = ("train", "--dataset", "digits", "--size", "24", "--subset", "0.1", "--set", QUARTER)


@pytest.mark.parametrize("command", [(), *[(name,) for name in COMMANDS]], ids=" ".join)
def test_help(command: tuple[str, ...], cli: Cli) -> None:
    code, out, err = cli(*command, "--help")
    assert (code, err) == (0, "")
    assert "Usage" in out
    assert len(out.splitlines()) <= SCREEN
    for name in COMMANDS if not command else ():
        assert re.search(rf"\b{name}\b", out)


def test_help_and_version_import_no_torch() -> None:
    """Importing torch takes seconds. Also test that `python -m automl` is `automl`."""
    last = "atexit.register(lambda: print('torch' in sys.modules))"
    code = "sys.argv = ['automl', '--version']; runpy.run_module('automl')"
    program = f"import atexit, runpy, sys; {last}; {code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"automl {version('attention-automl')}\nFalse\n"), (
        done.stderr
    )


def test_spaces_and_sites_are_listed(cli: Cli) -> None:
    code, out, _ = cli("spaces")
    assert code == 0
    for space in SPACES.values():
        assert re.search(rf"^{space.name} .*{re.escape(space.summary)}$", out, re.MULTILINE)
    assert "file.py:function" in out
    code, out, err = cli("sites", "xresnet18", "--size", "128")
    assert (code, err) == (0, "")
    heading, *sites, _ = out.splitlines()
    assert heading.split()[-len(ATTENTIONS) :] == list(ATTENTIONS)
    assert len(sites) == 17
    cells = {line.split()[0]: line.split()[1:] for line in sites}
    module, channels, stride, size, *costs = cells["stage1.block2.branch"]
    assert (module, channels, stride, size) == ("4.1.convpath", "64", "4", "32x32")
    assert len(costs) == len(ATTENTIONS)
    # A 1x1 convolution of 64 channels at 32x32: 64 * 64 weights and as many multiplications a position.
    assert costs[list(ATTENTIONS).index("conv1x1")].split("/")[1].startswith("4.")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SEARCH = ("search", "--space")

BAD: list[tuple[tuple[str, ...], list[str]]] = [
    # search
    ((*SEARCH, "wof"), ["unknown space 'wof'", "unet, vit, vit-published, woof", "Did you mean 'woof'?"]),
    (("search",), ["--space, --data or --train is missing", "--resume"]),
    ((*SEARCH, "digits", "--max-params", "1k"), ["nothing in this space meets --max-params 1k", "smallest"]),
    ((*SEARCH, "digits", "--option", "width=1"), ["--option width=1 is for --backbone; name one"]),
    (("search", "--resume", "older"), ["no search called 'older' in searches", "--storage"]),
    (
        ("search", "--resume", "older", "--epochs", "3"),
        ["--epochs 3 cannot be combined with --resume", "--budget"],
    ),
    ((*SEARCH, "digits", "--size", "5000"), ["between 24 and 1024", "got 5000"]),
    ((*SEARCH, "digits", "--gpus-per-trial", "1.5"), ["--gpus-per-trial", "got 1.5"]),
    ((*SEARCH, "digits", "--storage", "/proc/x"), ["--storage /proc/x cannot be written"]),
    # --dry-run
    *(
        ((*SEARCH, *options, "--dry-run"), fragments)
        for options, fragments in (
            (("digits", "--warm-start", "nosuch"), ["no search called 'nosuch' in searches"]),
            (("digits", "--storage", "/proc/x"), ["--storage /proc/x cannot be written"]),
        )
    ),
    # train
    ((*DIGITS, "--attention", "ssa", "--option", "ks"), ["an option is NAME=VALUE; got 'ks'"]),
    ((*DIGITS, "--attention", "multihead", "--option", "heads=5"), ["heads", "5", "stage1.block2.branch"]),
    ((*DIGITS, "--device", "cuda:99"), ["device 'cuda:99' cannot be used"]),
    ((*DIGITS, "--learning-rate", "0", "--epochs", "0"), ["2 problems", "learning_rate", "epochs"]),
    (("train", "--dataset", "folder"), ["folder needs the path", "--data PATH"]),
    (("train", "--dataset", "folder", "--data", "gone"), ["no file or folder", "gone"]),
    ((*DIGITS, "--log", "/proc/x/y"), ["/proc/x/y cannot be written"]),
    # other commands
    (("export", "--out", "out", "--best"), ["no search in searches", "automl search"]),
    ((*SEARCH, "digits", "--seeds", "3"), ["--seeds 3 needs --sampler grid", "--confirm"]),
    (("search", "--space", "digits", "--confirm", "--seeds", "6"), ["--seeds must be 7 or more"]),
    (("export", "--out", "out", "--run", "abc"), ["no run 'abc'"]),
]  # fmt: skip


def test_a_value_of_the_wrong_type_is_repeated(cli: Cli) -> None:
    code, _, err = cli(*SEARCH, "digits", "--size=big")
    assert code == 2
    assert "got big" in err


NEED_RUNS = {"--run"}  # these contact MLflow before they fail


@pytest.mark.parametrize(("arguments", "fragments"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_invalid_argument_is_reported_once_and_leaves_no_files(
    arguments: tuple[str, ...],
    fragments: list[str],
    folder: Path,
    cli: Cli,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if needs := NEED_RUNS.intersection(arguments):
        request.getfixturevalue("store")
    else:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    code, out, err = cli(*arguments)
    assert needs or not (folder / "mlflow.db").exists()
    # The first test that decodes the data, or creates the MLflow store, prints messages about it.
    messages = [line for line in err.splitlines() if not re.match(r"decoded |.* INFO mlflow", line)]
    assert code == 2
    assert messages[0].startswith("error: ")
    assert sum(line.startswith("error") for line in messages) == 1
    for fragment in fragments:
        assert fragment in err
    assert "Traceback" not in out + err
    assert not list(folder.glob("searches/*"))
    assert not (folder / "out").exists()


@pytest.mark.parametrize("arguments", [DIGITS, ("export", "--out", "out", "--run", "a")], ids=" ".join)
def test_unreachable_mlflow_server_is_reported(
    arguments: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    code, _, err = cli(*arguments)
    assert code == 2
    assert "error: MLflow at http://127.0.0.1:9 does not answer" in err
    assert not list(folder.glob("searches/*"))


@pytest.fixture
def earlier(folder: Path) -> str:
    """Create a search without trials."""
    settings = Settings(space="digits", name="older", trials=3).parsed
    plan = Plan(trials=3, budget=6, metric=ACCURACY)
    with new_folder(settings, plan, fingerprint=Drawn(SPACES["digits"]).fingerprint, data="d"):
        return "older"


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--resume", "older", "--space", "woof"), ["made with --space digits", "--warm-start older"]),
        (("--resume", "auto", "--space", "digits"), ["--resume auto needs the --name"]),
        (
            ("--resume", "auto", "--space", "digits", "--name", "older", "--epochs", "3"),
            ["'older' was made with --epochs None; give it the same again"],
        ),
        (("--resume", "our"), ["no search called 'our' in searches; there are older"]),
        (("--space", "digits", "--name", "older"), ["exists already", "--resume older"]),
        (("--space", "digits", "--name", "older", "--dry-run"), ["exists already", "--resume older"]),
        pytest.param(
            *(("--space", "woof", "--warm-start", "older"), ["made with another space (digits)"]),
            marks=pytest.mark.slow("draws a large space"),
        ),
    ],
    ids=lambda value: " ".join(value),
)
@pytest.mark.usefixtures("store", "earlier")
def test_invalid_argument_about_an_earlier_search(
    arguments: tuple[str, ...], fragments: list[str], folder: Path, cli: Cli
) -> None:
    before = sorted(folder.glob("searches/**/*"))
    code, out, err = cli("search", *arguments)
    assert code == 2
    for fragment in fragments:
        assert fragment in err
    assert "Traceback" not in out + err
    assert sorted(folder.glob("searches/**/*")) == before


NOWHERE: dict[str, Any] = {
    "resource": (), "label": (), "concurrent": None, "callbacks": (), "trust": True,
}  # fmt: skip
ELSEWHERE = ("--label", "zone=b", "--concurrent", "2")
ON_TWO_IN_B = {**NOWHERE, "label": ("zone=b",), "concurrent": 2}


@pytest.mark.parametrize(
    ("more", "called"),
    [
        (("auto", "--name", "older"), ("resume", "older", None, NOWHERE)),
        (("auto", "--name", "older", "--trials", "9"), ("resume", "older", 9, NOWHERE)),
        (("auto", "--name", "older", *ELSEWHERE), ("resume", "older", None, ON_TWO_IN_B)),
        (("auto", "--name", "new"), ("run", "new")),
        (("older",), ("resume", "older", None, {"trust": False})),
        (("older", "--trust"), ("resume", "older", None, {"trust": True})),
        (
            ("older", "--trials", "+9", *ELSEWHERE),
            ("resume", "older", "+9", {"trust": False, "label": ["zone=b"], "concurrent": 2}),
        ),
    ],
    ids=["exists", "more trials", "other nodes", "new", "by name", "with trust", "by name, other nodes"],
)
@pytest.mark.usefixtures("earlier")
def test_repeated_job_starts_or_resumes(
    more: tuple[str, ...], called: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    calls: list[tuple[Any, ...]] = []

    def stop(*call: Any) -> None:
        calls.append(call)
        raise InputError("stop here")

    def resume(
        name: str, *, trials: Any, storage: Any, space: Any, seeds: Any, budget: Any, **scheduling: Any
    ) -> None:
        stop("resume", name, trials, scheduling)

    monkeypatch.setattr(search, "start_search", lambda settings, describe: stop("run", settings.place.name))
    monkeypatch.setattr(search, "resume_search", resume)
    cli("search", "--space", "digits", "--resume", *more)
    assert calls == [called]


def test_repeated_job_keeps_the_chosen_epochs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(space="digits", name="small", trials=3, subset=0.2).parsed
    plan = Plan(trials=3, budget=43, metric=ACCURACY)
    with new_folder(settings.change(question={"epochs": 43}), plan, fingerprint="a-b", data="d"):
        pass
    monkeypatch.setattr(search, "resume_search", lambda name, **more: name)
    assert search.start_or_resume(settings) == "small"  # type: ignore[comparison-overlap]
    with pytest.raises(InputError, match="made with --epochs 43"):
        search.start_or_resume(settings.change(question={"epochs": 2}))


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["status", "none"], 2)])
def test_exit_handlers_run(arguments: list[str], code: int) -> None:
    program = (
        f"import atexit; atexit.register(print, 'the end', end=''); "
        f"from automl.cli.main import run; run({arguments}); print('never')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stdout.endswith("the end")
    assert done.stderr.startswith("error: ") == (code == 2)


def test_code_of_the_user_and_a_second_interrupt_end_in_order(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import sys\n\ndef stop():\n    sys.exit(0)\n")
    stop = load_object("model", "function", f"{tmp_path}/net.py:stop", ())
    with pytest.raises(InputError, match=r"ended the program: SystemExit: 0 \(net\.py, line 4\)"):
        as_command(stop)()
    # Ctrl-C once more, while the first one ends the command and the process.
    lines = (
        "import atexit, os, signal",
        "from automl.cli import main",
        "def interrupted(*_): raise KeyboardInterrupt",
        "main.main = interrupted",
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))",
        "main.run()",
    )
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (130, "")


@pytest.mark.parametrize(
    "command",
    [
        name
        for name, command in typer.main.get_command(app).commands.items()
        if "search" in {parameter.name for parameter in command.params}
    ],
)
def test_a_search_is_named_by_position_or_by_option(
    command: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["--best"] if command == "export" else []
    by_position, by_option = cli(command, "mine", *more), cli(command, "--search", "mine", *more)
    assert by_position == by_option
    assert by_position[0] == 2
    assert "no search called 'mine'" in by_position[2]
    assert "two searches are named" in cli(command, "mine", "--search", "another", *more)[2]


def test_the_latest_search_is_not_meant_by_sync(cli: Cli) -> None:
    code, _, err = cli("sync")
    assert (code, err) == (2, "error: the NAME of a search is missing; automl searches lists the names\n")
