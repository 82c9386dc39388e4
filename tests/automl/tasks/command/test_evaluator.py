"""Commands that cheat: each attack is a script that runs through the loop of trials, as in a comparison."""

import os
import shlex
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from automl.storage.trial_files import read_left
from automl.tasks.command import COMMAND, CommandModel, CommandTraining, Guard
from automl.tasks.command.evaluator import make_guard
from automl.tasks.command.loop import train
from automl.trials.job import CommandFailed, Job
from search.config import Data, TrialConfig
from search.metric import Metric

pytestmark = pytest.mark.usefixtures("cache")

PYTHON = shlex.quote(sys.executable)
EVALUATE = f"{PYTHON} -S eval.py {{out}}"
TRAIN = "import pathlib, sys; out, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])\n"
HONEST = TRAIN + "(out / 'answers').write_text('1 0 1 1')\n"
EVAL = """
import pathlib, sys
answers, labels = ((folder / name).read_text().split() for folder, name in (
    (pathlib.Path(sys.argv[1]), "answers"), (pathlib.Path("data"), "val")))
print("acc", sum(a == b for a, b in zip(answers, labels)) / len(labels))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with an evaluator and data."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data/val").write_text("1 0 1 0")
    (folder / "data/train").write_text("0 0 1 1")
    (folder / "eval.py").write_text(EVAL)
    monkeypatch.chdir(folder)
    return folder


def guard(evaluate: str = EVALUATE, protect: Sequence[str] = ("data",), ignored: Sequence[str] = ()) -> Guard:
    here = Path.cwd()
    return make_guard(evaluate, protect, ignored, here, here.parent / "copies", None)


def run(program: str, guarded: Guard | None = None, number: int = 0, metric: str = "acc (.*)") -> float:
    """Write a training script and run it as a trial. Return the score."""
    Path("train.py").write_text(program)
    trial = Storage(str(Path.cwd().parent / f"trial {number}"))
    config = TrialConfig(
        task=COMMAND,
        data=Data(path=str(Path.cwd())),
        model=CommandModel(command=f"{PYTHON} -S train.py {{out}} {{seed}}"),
        training=CommandTraining(
            epochs=1,
            metric=metric,
            guard=guarded or guard(),
            reports=Metric(name="acc", maximize=True, margin=0),
        ),
        seed=7,
    )
    config = TrialConfig.from_json(config.to_json())
    runtime = Runtime(device=torch.device("cpu"))
    try:
        ((metrics,),) = train(Job(config=config, runtime=runtime, folder=trial))
    finally:
        assert not (Path(trial.local or "") / "out").exists()
    return metrics["acc"]


def test_the_output_of_the_evaluator_alone_counts_and_files_left_are_named(project: Path) -> None:
    assert run(HONEST + "print('acc 1.0'); print('acc 0.9', file=sys.stderr)") == 0.75
    assert read_left(Storage(str(project.parent / "trial 0"))) == []
    counts = HONEST + "open('runs', 'a').write('x')"
    with pytest.raises(CommandFailed, match="--evaluate printed no metric"):
        run(counts, number=1, metric="accuracy (.*)")
    assert run(counts, number=1) == 0.75
    assert (project / "runs").read_text() == "x"


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("pathlib.Path('eval.py').write_text('print(\"acc 1.0\")')", "^--protect eval.py was changed during"),
        ("pathlib.Path('data/val').write_text('1 0 1 1')", "^--protect data, val, was changed during this"),
        ("pathlib.Path('data/more').write_text('x')", "^--protect data, more, was changed"),
        (
            "val = pathlib.Path('data/val'); text = val.read_text(); val.write_text('0')"
            "; val.write_text(text)",
            "^--protect data, val, was written and restored",
        ),
        ("pathlib.Path('weights.pt').write_text('3')", "must leave no checkpoint .* this one left"),
        ("pathlib.Path('weights').write_bytes(bytes(2**21))", "this one left weights in"),
        ("(out / 'labels').symlink_to(pathlib.Path('data/val').resolve())", "no link that leads out of"),
        ("(out / 'answers').unlink()", "^--evaluate failed with exit code 1: FileNotFoundError"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_run_that_changes_what_scores_it_is_refused(attack: str, reason: str) -> None:
    with pytest.raises(CommandFailed, match=reason):
        run(f"{HONEST}{attack}\nprint('acc 1.0')")


def test_a_file_changed_before_a_run_is_refused(project: Path) -> None:
    guarded = guard()
    (project / "data/val").write_text("1 0 1 1")
    with pytest.raises(CommandFailed, match=r"--protect data has changed since the beginning\. Restore it"):
        run(HONEST, guarded)
    (project / "data/val").write_text("1 0 1 0")
    assert run(HONEST, guarded) == 0.75


def test_the_evaluator_runs_in_a_clean_copy(project: Path) -> None:
    """Neither a module beside the original nor a change of the copy has an effect."""
    guarded = guard()
    (project / "pathlib.py").write_text("raise SystemError")
    (project / "data/__pycache__").mkdir()
    honest = HONEST.replace("import pathlib, sys", "import sys; sys.path.pop(0); import pathlib")
    assert run(honest, guarded) == 0.75
    copied = Path(guarded.evaluator) / "eval.py"
    copied.write_text("print('acc 1.0')")
    with pytest.raises(CommandFailed, match=r"^--evaluate cannot run, since its copy \S+ has changed"):
        run(honest, guarded, 1)


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        ("print('acc 0.9')", r"^--evaluate printed --metric 'acc \(\.\*\)' 2 times \(0.75, ..., 0.9\)"),
        ("(pathlib.Path(sys.argv[1]) / 'answers').write_text('1')", "PermissionError|^{out} changed"),
    ],
)
def test_mistakes_of_an_evaluator(project: Path, added: str, reason: str) -> None:
    (project / "eval.py").write_text(EVAL + added)
    with pytest.raises(CommandFailed, match=reason):
        run(HONEST)


def test_files_left_by_runs_are_named(project: Path) -> None:
    """A later run may read them, so a checkpoint is refused and a log named. Caches and MLflow's are not."""
    names = ("tokens/a.bin", "log.txt", ".mlflow.db.lock")
    keeps = HONEST + f"import os; os.makedirs('tokens'); [open(name, 'w') for name in {names}]"
    assert run(keeps, guard(ignored=["tokens"])) == 0.75
    assert read_left(Storage(str(project.parent / "trial 0"))) == ["log.txt"]
    without = guard("", ())
    assert run(HONEST + "open('weights.pt', 'w'); print('acc 1')", without, 1) == 1
    assert read_left(Storage(str(project.parent / "trial 1"))) == ["weights.pt"]


def test_later_runs_find_no_outputs_and_marks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of scored runs nor those of failed ones. The record of the judge has them."""
    for name, value in (
        ("RAY_JOB_ID", "1\n2"),
        ("TUNE_X", "1"),
        ("PYTHONBREAKPOINT", "ray.util.rpdb.set_trace"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    own = "(out / 'deep').mkdir(); (out / 'deep/model.pt').write_text('3'); (out / 'no').mkdir(0)\n"
    program = (
        "import os; found = [path for path in out.parent.parent.rglob('*') if path.suffix == '.pt' or"
        " path.name == 'answers']\n"
        "marks = [k for k, v in os.environ.items() if 'ray' in k.lower() + v or 'TUNE' in k]\n"
        "assert not found + marks, [found, marks]\nassert os.environ['NCCL_SOCKET_IFNAME'] == 'eth0'\n"
    )
    for number in range(2):
        assert run(program.join(HONEST.splitlines(keepends=True)) + own, number=number) == 0.75
    with pytest.raises(CommandFailed, match="exit code 1: RuntimeError"):
        run(HONEST + own + "raise RuntimeError", number=2)
    assert run(program.join(HONEST.splitlines(keepends=True)), number=3) == 0.75
    for number in range(3):
        with tarfile.open(project.parent / f"trial {number}/out.tar") as kept:
            assert {"out/answers", "out/deep/model.pt"} <= {*kept.getnames()}


def test_a_run_that_has_ended_is_not_repeated_in_its_folder(project: Path) -> None:
    """A comparison that is killed before it has noted a failure does not give another chance."""
    lucky = HONEST + "open('runs', 'a').write('x'); sys.exit(open('runs').read() == 'x')"
    for _ in range(2):
        with pytest.raises(CommandFailed, match=r"^exit code 1"):
            run(lucky)
    changes = (
        lucky.split("sys.exit")[0]
        + "n = len(open('runs').read()); open('data/val', 'a').write(' ' * (n < 3))"
    )
    for _ in range(2):
        with pytest.raises(CommandFailed, match=r"^--protect data, val, was changed during"):
            run(changes, number=1)
        (project / "data/val").write_text("1 0 1 0")
    assert (project / "runs").read_text() == "xx"


@pytest.mark.parametrize("name", ["notes", "old.pt"])
def test_files_that_a_run_deletes_are_not_left(project: Path, name: str) -> None:
    """Other runs in the same folder delete their temporary files meanwhile."""
    (project / name).write_text("3")
    assert run(f"{HONEST}pathlib.Path('{name}').unlink()") == 0.75
    assert read_left(Storage(str(project.parent / "trial 0"))) == []


def test_files_beyond_the_limit_are_compared_by_time(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from automl.storage import contents
    from automl.tasks.command import evaluator

    monkeypatch.setattr(contents, "REREAD", 3)
    monkeypatch.setattr(evaluator, "COPIED", 3)
    guarded = guard()
    assert (Path(guarded.evaluator) / "data").is_symlink()
    assert run(HONEST, guarded) == 0.75
    state = os.stat("data/val")
    Path("data/val").write_text("1 0 1 1")
    os.utime("data/val", ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(CommandFailed, match="--protect data has changed"):
        run(HONEST, guarded, 1)


def test_files_outside_are_used_where_they_are(project: Path) -> None:
    """Labels that only the evaluator knows are outside of the folder of the commands."""
    secret = project.parent / "secret"
    secret.mkdir()
    (secret / "labels").write_text("1 0 1 0")
    (secret / "eval.py").write_text(
        EVAL.replace('pathlib.Path("data"), "val"', 'pathlib.Path(sys.argv[2]), ""')
    )
    guarded = guard(f"{PYTHON} -S ../secret/eval.py {{out}} {secret}/labels", ())
    assert run(HONEST, guarded) == 0.75
    with pytest.raises(CommandFailed, match=f"--protect {secret}/labels was changed"):
        run(HONEST + f"open('{secret}/labels', 'w').write('1 0 1 1')", guarded, 1)
