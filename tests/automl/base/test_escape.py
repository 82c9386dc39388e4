"""Hostile names in every output: none is interpreted as markup, a command or a control character."""

import inspect
import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest
from markdown_it import MarkdownIt
from mlflow import MlflowClient
from rich.console import Console

from automl.base.errors import InputError
from automl.base.escape import markdown, markdown_code, mlflow_key, mlflow_value, printable, redact, shell
from automl.base.options import format_command
from automl.base.process import capture_library_logs
from automl.base.terminal import EscapedStream, Summary, escaped_output
from automl.callbacks.search_progress import Progress
from automl.cli.main import app
from automl.report.figure import Figure, inline
from automl.storage.metadata import collect_provenance
from automl.storage.storage import Storage
from automl.tracking import client
from automl.tracking.client import find_runs
from automl.tracking.run_spec import NOTE, TRIAL, RunSpec
from automl.tracking.writer import MlflowWriter
from search.config import TrialConfig
from search.metric import Metric
from search.record import State, TrialRecord
from search.trial_scheduler import Plan
from tests.helpers.hostile import HOSTILE

every_name = pytest.mark.parametrize("name", HOSTILE, ids=ascii)
RENDER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
PLAIN = {
    "inline",
    "text",
    "heading_open",
    "heading_close",
    "paragraph_open",
    "paragraph_close",
    "code_inline",
}


def is_visible(text: str, keep: str = "") -> bool:
    """Return True if no character moves the cursor, changes the direction of text, or is a surrogate."""
    text.encode()
    return all(character.isprintable() or character in keep or character == "\u3000" for character in text)


def rendered(page: str) -> tuple[set[str], str]:
    """Render Markdown. Return the types of its elements and the visible text."""
    kinds, texts = set(), []
    for block in RENDER.parse(page):
        for token in [block, *(block.children or ())]:
            kinds.add(token.type)
            if token.type in ("text", "code_inline"):
                texts.append(token.content)
    return kinds, "".join(texts)


@every_name
def test_printable(name: str) -> None:
    assert is_visible(printable(name))
    assert is_visible(printable(f"{name}\n{name}", keep="\n"), keep="\n")


@every_name
@pytest.mark.parametrize("page", ["# {}", "{}", "The {}.", "| a | b |\n| - | - |\n| {} | y |"], ids=ascii)
def test_markdown(name: str, page: str) -> None:
    kinds, text = rendered(page.format(markdown(name)))
    expected = printable(" ".join(name.split()))
    assert expected in text
    if "|" in page:
        assert kinds == rendered(page.format("name"))[0]
    else:
        assert kinds <= PLAIN
    kinds, text = rendered(f"kept in {markdown_code(name)}.")
    assert kinds <= PLAIN
    assert text == f"kept in {printable(name)}."


def test_plain_text_and_words_are_kept() -> None:
    plain = (
        "ssa@stage1.block2.branch (trial 3) is better by +0.70 points, my_class: -1 to 2.5 (95 % CI), 1. of 2"
    )
    assert markdown(plain) == plain
    script = f"printf '%s\\0' {shell(HOSTILE)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True)
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(name) for name in HOSTILE]
    assert is_visible(script)
    assert format_command("report --search", "it's", "a\nb", "--out", "$(x)") == (
        """automl report --search 'it'"'"'s' --storage $'a\\nb' --out '$(x)'"""
    )


def test_mlflow(store: MlflowClient, tmp_path: Path) -> None:
    """MLflow accepts names, tags, parameters, metrics and descriptions, and filters select single runs."""
    for name in HOSTILE:
        spec = RunSpec(
            experiment="hostile",
            name=name,
            identity=name,
            note=markdown_code(name),
            checkpoint=lambda record: Storage(str(tmp_path / "none")),
            params={name: name},
            metric="accuracy",
        )
        writer = MlflowWriter(spec)
        if "'" in name:
            assert MlflowWriter(spec).parent == writer.parent, "it is found and continued"
        writer.client.set_tag(writer.parent, TRIAL, "0")
    runs = {name: list(find_runs(store, [writer.experiment], {"automl.identity": name})) for name in HOSTILE}
    assert [len(of) for of in runs.values()] == [1] * len(HOSTILE)
    for name, (run,) in runs.items():
        assert run.info.run_name == mlflow_value(name)
        assert run.data.params == {mlflow_key(name): mlflow_value(name)}
        assert rendered(run.data.tags[NOTE])[0] <= PLAIN
    trial = TrialRecord(0, TrialConfig())
    trial.history.append({"epoch": 1, **{f"gate.{name}": 0.5 for name in HOSTILE}})
    trial.state, trial.reason = State.ERROR, "\n".join(HOSTILE)
    run = store.get_run(writer.write(trial))
    assert len(run.data.metrics) > 2 * len(HOSTILE) / 3
    assert run.data.tags["reason"] == mlflow_value(trial.reason)


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


class Named(Summary):
    def __init__(self, name: str) -> None:
        self.name = name

    def lines(self) -> Iterator[tuple[str, str]]:
        yield self.name, self.name


@every_name
def test_html(name: str) -> None:
    page = Elements(Named(name)._repr_html_())
    assert page.tags == ["table", "tr", "th", "td"]
    assert is_visible(page.text)
    assert "<" not in inline({"name": name})
    assert is_visible(inline({"name": [name]}))


def test_figure_with_hostile_names() -> None:
    import altair as alt

    chart = alt.Chart(alt.NamedData("rows")).mark_bar().encode(x=alt.X("value:Q"), y=alt.Y("name:N"))
    figure = Figure(charts=[chart], data={"rows": [{"name": name, "value": 1} for name in HOSTILE]})
    svg = figure.svg()
    assert is_visible(svg, keep="\n\t")
    assert "<script" not in svg


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_the_progress_of_a_search(name: str) -> None:
    """They are not interpreted as markup of rich, and stay on their line of a log."""
    trial = TrialRecord(0, TrialConfig(), variant=name, reason=name, state=State.ERROR)
    metric = Metric(name="accuracy", maximize=True)
    plan = Plan(trials=1, budget=1.0, metric=metric)
    progress, screen = Progress(plan, {0: trial}, trials=lambda: 1, summary=lambda: name), io.StringIO()
    progress.console = Console(file=screen, width=9999, color_system=None)
    progress.on_trial_start(trial)
    progress.on_trial_end(trial)
    text = screen.getvalue()
    assert printable(name)[:40] in text
    assert is_visible(text, keep="\n\r")
    assert {line[:9] for line in text.splitlines()[2:]} <= {" " * 9}


def test_output_of_commands_is_escaped(
    capsys: pytest.CaptureFixture[str], cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    with escaped_output():
        print("\x1b[31mred\x1b[0m", "Äpfel", "latin1 \udce9")
        print("\x1b[0m", end="")  # as colorama at the end of a process
        print("a\tb\rc", file=sys.stderr)
    assert capsys.readouterr() == ("\\x1b[31mred\\x1b[0m Äpfel latin1 \\udce9\n\x1b[0m", "a\tb\rc\n")
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    EscapedStream(narrow).write("猫")
    narrow.flush()
    assert narrow.buffer.getvalue() == b"\\u732b"  # type: ignore[attr-defined]
    folder = tmp_path / "\x1b[2J\nsearches"
    folder.mkdir()
    code, _, error = cli("status", "--storage", str(folder))
    assert code == 2
    assert is_visible(error, keep="\n")


def _float_options() -> list[tuple[str, str]]:
    """Return every option of every command that takes a float."""
    return [
        (command.callback.__name__, f"--{name.replace('_', '-')}")
        for command in app.registered_commands
        if command.callback is not None
        for name, parameter in inspect.signature(command.callback).parameters.items()
        for kind in get_args(parameter.annotation)[:1]
        if float in (kind, *get_args(kind))
    ]


NEEDED = {
    "predict": ["folder", "text"],
    "referee": ["--baseline", "a {seed}", "--candidate", "b {seed}", "--metric", "acc"],
    "sites": ["xresnet18"],
    "search": ["--space", "digits"],
    "study": ["vit-blocks", "--small"],
}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("name", "option"), _float_options())
def test_nan_and_infinity_are_rejected(
    name: str, option: str, value: str, cli: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, error = cli(name, *NEEDED.get(name, []), f"{option}={value}")
    assert code == 2
    assert f"got {value}" in error
    assert "Traceback" not in error


def test_headers_and_tokens_of_the_environment_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "correct-horse")
    monkeypatch.setenv("SOME_KEY_FILE", "/home/me/key")
    for text in (
        "{'Authorization': 'Bearer abc.def'}",
        '{"authorization": "Basic abcdefgh="}',
        "authorization: abc.def, host: a",
        "sent Bearer abc.def",
        "no such token hf_abcdefgh",
        "got correct-horse",
    ):
        assert "***" in redact(text)
        assert not re.search("abc|horse", redact(text))
    assert redact("it is Basic, in /home/me/key, and not authorized: no") == (
        "it is Basic, in /home/me/key, and not authorized: no"
    )


PLANTED = "pla+nted%21"
ADDRESS = f"http://somebody:{PLANTED}@127.0.0.1:1/path"  # no server listens there
PUBLIC = "http://***@127.0.0.1:1/path"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ADDRESS, PUBLIC),
        (f"to {ADDRESS}, then '{ADDRESS}'", f"to {PUBLIC}, then '{PUBLIC}'"),
        (f"postgresql+psycopg2://me:a@{PLANTED}@host/db", "postgresql+psycopg2://***@host/db"),
        (f"/home/me/http:/me:{PLANTED}@host/db", "/home/me/http:/***@host/db"),
        (f"https://{PLANTED}@host:5000", "https://***@host:5000"),
        (f"--storage=S3://key:{PLANTED}@bucket", "--storage=S3://***@bucket"),
        (
            f"s3://bucket/a@b?secret_key={PLANTED}&region=eu&session_token={PLANTED}",
            "s3://bucket/a@b?secret_key=***&region=eu&session_token=***",
        ),
        (f"https://host/blob?sv=1&sig={PLANTED}#x", "https://host/blob?sv=1&sig=***#x"),
        (
            "abfss://container@account.dfs.core.windows.net/a",
            "abfss://container@account.dfs.core.windows.net/a",
        ),
        (f"abfss://account:{PLANTED}@container/a", "abfss://***@container/a"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("ask me@host, see http://host/me@work?keep=3", "ask me@host, see http://host/me@work?keep=3"),
    ],
)
def test_credentials_are_redacted(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


def test_logs_messages_and_commands_are_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., tuple[int, str, str]]
) -> None:
    with capture_library_logs(tmp_path / "log.txt"):
        log = logging.getLogger("mlflow")
        log.warning("%s does not answer", ADDRESS)
        try:
            raise ConnectionError(ADDRESS)
        except ConnectionError:
            log.exception("it failed")
    message = (tmp_path / "log.txt").read_text()
    assert PLANTED not in message
    assert f"{PUBLIC} does not answer" in message
    assert f"ConnectionError: {PUBLIC}" in message
    monkeypatch.setattr(sys, "argv", ["/bin/automl", "search", "--data", ADDRESS])
    assert collect_provenance().command == ["automl", "search", "--data", PUBLIC]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ADDRESS)
    with pytest.raises(InputError, match="does not answer") as raised:
        client.open_client()
    assert f"MLflow at {PUBLIC} does not" in str(raised.value)
    assert PLANTED not in str(raised.value)
    code, out, err = cli("train", "--dataset", "nette", "--data", ADDRESS)
    assert code == 2
    assert "must not contain credentials" in err
    assert PLANTED not in out + err
    # Run in a new process, where Python prints the uncaught error.
    program = f"import automl.cli.main as c; c.main(program=lambda *_, **options: open({ADDRESS!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert f"FileNotFoundError: [Errno 2] No such file or directory: '{PUBLIC}'" in done.stderr
    assert PLANTED not in done.stderr
