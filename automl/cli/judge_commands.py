"""`automl confirm`, `automl referee`, `automl ledger` and `automl solve`."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from automl.base.escape import printable
from automl.base.lazy import optional
from automl.base.options import WRITES, format_command
from automl.base.serialise import write_json
from automl.base.terminal import ROWS, count_rows, wrap
from automl.base.units import pluralize
from automl.cli.check_files import JUNIT, SUMMARY, check_writable, report_ledger, report_verdict
from automl.cli.command import (
    JSON_OPTION,
    STORAGE_OPTION,
    TRUST_OPTION,
    only,
    option,
    passed_on,
    print_json,
    with_effect,
    with_options_of,
)
from automl.judge.options import ConfirmOptions, RefereeOptions

if TYPE_CHECKING:
    from automl.judge.verdict import ConfirmResult
    from automl.search.solve import SolveResult

LEDGER_ARGUMENT = with_effect(typer.Argument(help="Folder of the ledger."), WRITES)  # with --final
CODES = {"better": 0, "worse": 3}  # of a referee; 1 for other outcomes, 2 for mistakes and failed runs
SHOWN_DIGITS = 16  # of a hash
SHOWN_RUNS, SHOWN_ROWS = 3, 9  # largest number of failed commands whose output is shown, and of its rows


@with_options_of(ConfirmOptions)
def confirm(
    context: typer.Context,
    *,
    summary: Path | None = SUMMARY,
    junit: Path | None = JUNIT,
    as_json: bool = JSON_OPTION,
    **values: Any,
) -> None:
    """Test finalists against the tuned baseline with new seeds."""
    from automl.judge.run_confirm import run_confirm

    check_writable(summary, junit)
    start = time.monotonic()
    result = run_confirm(**values)
    print_confirm(result, values["storage"])
    report_verdict(result, time.monotonic() - start).write(summary, junit)
    if as_json:
        print_json(result.value)
    if not result.verdict.complete:
        sys.exit(1)


def print_confirm(result: "ConfirmResult", storage: str) -> None:
    """Print the verdict, the other comparisons, and the next commands.

    Comparisons and remarks that the rest of a screen has no room for are left to the file of the verdict.
    """
    verdict = result.verdict
    which = f" (confirmation {result.number})" if result.number > 1 else ""
    kind = verdict.design.kind
    done = f"{kind.done:9} {result.search}{which}: {verdict.final or 'no verdict'}"
    head = [done if verdict.noise is None else f"measured  {result.search}: noise of the baseline"]
    for i, line in enumerate(verdict.lines):
        head += wrap("" if i else "verdict", line)
    # The figures of the leading finalist are in the verdict.
    others = [verdict.sentence(each) for each in verdict.comparisons if each.variant != verdict.finalist]
    end, left = [*_last_lines(result, storage)], 0
    room = ROWS - 1 - count_rows([*head, *end])
    for text in (*verdict.remarks, *others):
        lines = wrap("", text)
        left += count_rows(lines) > room
        if count_rows(lines) <= room:
            head, room = [*head, *lines], room - count_rows(lines)
    if left:
        head += [f"{'':9} {pluralize(left, 'lines')} more are in {result.folder / 'verdict.json'}"]
    print("\n".join([*head, *end]))


def _last_lines(result: "ConfirmResult", storage: str) -> Iterator[str]:
    """Yield the lines that follow the comparisons."""
    verdict, kind = result.verdict, result.verdict.design.kind
    if guard := result.value["variants"][0]["config"]["training"].get("guard"):
        if guard["evaluate"]:
            yield f"evaluator {Path(guard['evaluator']).name[:SHOWN_DIGITS]}, a copy in {guard['evaluator']}"
        hashes = (f"{path} {digest[:SHOWN_DIGITS]}" for path, digest in guard["protect"].items())
        yield from wrap("protected", ", ".join(hashes))
    yield from wrap("cause", verdict.cause)
    for warning in verdict.warnings:
        yield from wrap("warning", warning)
    if result.untracked:
        sync = format_command("sync", result.search, storage)
        yield f"warning   some trainings were not written to MLflow. When it is available: {sync}"
    if kind.own:
        shown = [(name, log) for name, log in result.logs.items() if log][:SHOWN_RUNS]
        for name, log in shown:
            yield f"output    {name} ended with:"
            lines = [f"          | {line}" for line in log.splitlines()]
            while len(lines) > 1 and count_rows(lines) > SHOWN_ROWS // len(shown):
                del lines[0]
            yield from lines
    if not verdict.complete:
        resume = format_command(kind.resume, result.search, storage)
        loss = "; a failed run that is repeated counts as a loss" * kind.own
        yield f"resume    {resume}  (errors are in {result.folder}{loss})"
        if kind.correct and result.logs:
            yield f"          {kind.correct}"
    for i, command in enumerate(_next_commands(result, storage)):
        yield f"{'' if i else 'next':9} {command}"


def _next_commands(result: "ConfirmResult", storage: str) -> Iterator[str]:
    """Yield the most useful next step, and the commands of the report and the export."""
    from automl.storage.user_code import trust_option

    verdict = result.verdict
    if verdict.next_step:
        yield printable(verdict.next_step)
    yield format_command("report --search", result.search, storage)
    if verdict.design.kind.exports:
        # If no finalist is better, the baseline is the model to deploy.
        what = "--best" if verdict.winner is not None else "--baseline"
        yield format_command(
            f"export{trust_option(result.user_code)} {what} --search",
            *(result.search, storage, "--out", f"exports/{result.search}"),
        )


@with_options_of(RefereeOptions)
def referee(
    context: typer.Context,
    *,
    fail_on_worse: bool = option(False, "Exit with 0 where nothing is shown.", None, "--fail-on-worse"),
    summary: Path | None = SUMMARY,
    junit: Path | None = JUNIT,
    as_json: bool = JSON_OPTION,
    **values: Any,
) -> None:
    """Compare training commands in any language with fresh seeds.

    Exit code: 0 better, 1 not shown, 2 mistake or failed run, 3 worse.
    """
    from automl.tasks.command.referee import run_referee

    if values["resume"] is not None:
        only(context, "resume", "storage", "ledger", "fail_on_worse", "summary", "junit", "as_json", "trust")
    check_writable(summary, junit)
    start = time.monotonic()
    result = run_referee(**{name: value for name, value in values.items() if value is not None})
    print_confirm(result, result.storage)
    report_verdict(result, time.monotonic() - start).write(summary, junit)
    if as_json:
        print_json(result.value)
    verdict = result.verdict
    if verdict.noise is not None and not verdict.is_constant:
        return
    is_mistake = verdict.is_constant or (not verdict.complete and bool(result.logs))
    if is_mistake or verdict.final != "better":
        code = 2 if is_mistake else CODES.get(str(verdict.final), 1)
        sys.exit(0 if fail_on_worse and code == 1 and verdict.complete else code)


def ledger(
    folder: Annotated[str, LEDGER_ARGUMENT],
    final: bool = option(False, "Compare the head with the first baseline on fresh seeds.", None, "--final"),
    summary: Path | None = SUMMARY,
    junit: Path | None = JUNIT,
    trust: bool = TRUST_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """List the changes that a ledger has judged."""
    from automl.tasks.command.run_ledger import run_ledger

    check_writable(summary, junit)
    result = run_ledger(folder, final=final, trust=trust)
    print(repr(result))
    report_ledger(result).write(summary, junit)
    if as_json:
        print_json(result.to_json())


def solve(
    context: typer.Context,
    search: Annotated[str | None, typer.Argument(help="Name of the search. Default: the latest.")] = None,
    max_latency_ms: float | None = option(None, "Limit on the latency of one input in ms."),
    max_params: str | None = option(None, "Limit on parameters, such as 5M."),
    max_macs: str | None = option(None, "Limit on multiply-accumulates, such as 2G."),
    max_memory: str | None = option(None, "Limit on the memory of a step, such as 4GB."),
    full: int | None = option(None, "Number of full layers of a hybrid decoder."),
    out: Path | None = option(None, "File of the answer, for automl confirm --solve.", effect=WRITES),
    space: str | None = option(None, "Space, if that of the search was in a notebook or its file has moved."),
    storage: str = STORAGE_OPTION,
    trust: bool = TRUST_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Find the best placement under limits without training."""
    from automl.search.solve import run_solve

    result = run_solve(**passed_on(context, "out"))
    if out is not None:
        write_json(out, result)
    for line in lines(result, out):
        print(line)
    if as_json:
        print_json(result.to_json())


def lines(result: "SolveResult", out: Path | None) -> Iterator[str]:
    """Yield the lines of an answer, which was written to `out` if it is not None."""
    from automl.search.solve import show_cost, show_limit

    metric, best = result.metric, result.best
    gain, low, high = (f"{metric.scale * value:+.3g}" for value in (best.gain, best.low, best.high))
    if result.likeliest != best.placement:
        yield printable(
            f"likelier  {result.likeliest}, which is as good or better with {1 - best.better:.0%}"
        )
    yield printable(f"placement {best.placement}")
    if best.outcome is not None:
        yield printable(f"confirmed {best.outcome}: {best.verdict}")
    yield (
        f"gain      {gain} ({low} to {high}) {metric.gap_unit} in {metric.name} over {result.baseline}, "
        f"expected with 90 % interval"
    )
    yield f"          better than {result.baseline} with {best.better:.0%}"
    if result.matters < 1:
        yield f"          placements make a difference with {result.matters:.0%}; the interval assumes that"
    trained = f"in {pluralize(best.trials, 'trials')}" if best.trials else "in no trial yet"
    yield f"trained   {trained}; with the hyperparameters of trial {result.trial}, the best by the model"
    for name, limit in result.limits.items():
        how = "" if name in ("params", "macs") else ", predicted from its modules"
        yield f"{name:9} {show_cost(name, best.costs[name])} ({show_limit(name, limit)}){how}"
    if out is not None:
        confirm = format_command("confirm --search", result.search, result.storage, "--solve", str(out))
        yield f"next      {confirm}"


def mcp(
    context: typer.Context,
    allow_outside: bool = option(
        False, "Let tools write to other folders than the current one.", None, "--allow-outside"
    ),
) -> None:
    """Serve the commands as tools of agents.

    A client of the Model Context Protocol starts it, and speaks by standard input and output.
    """
    _ = optional("mcp.server.lowlevel", "mcp").Server  # or the message of the extra
    from automl.cli.mcp_server import read_tools, serve

    commands: Any = context.find_root().command
    serve(read_tools(commands.commands, outside=allow_outside))


def skill() -> None:
    """Print instructions for agents that ask a referee."""
    print(Path(__file__).with_name("SKILL.md").read_text(encoding="utf-8"), end="")
