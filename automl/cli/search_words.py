"""Final output of `automl search`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from automl.base.escape import printable

if TYPE_CHECKING:
    from automl.report.figure import Table
    from automl.search.search import Search


def print_search(result: "Search", storage: str) -> None:
    """Print the best trials, warnings and errors, and the next commands."""
    from automl.base.command_line import format_command
    from automl.search.search import describe_model, missing_cells
    from search.record import State

    counts = result.counts
    print(
        f"search {result.search}: {counts[State.COMPLETE]} trials complete, {counts[State.PRUNED]} pruned, "
        f"{counts[State.INFEASIBLE]} infeasible, {counts[State.ERROR]} errors, {result.seconds:.0f} s"
    )
    for title, trial in (("best", result.best), ("baseline", result.baseline)):
        if trial is None:
            print(f"{title:9} no trial completed")
        else:
            run = result.runs.get(trial.number) or "not in MLflow yet"
            print(f"{title:9} {result.describe_score(trial)}  {describe_model(trial)}  (run {run})")
    if len(result.leading) > 1:
        print("leading")
        for trial in result.leading:
            print(f"          {trial.number:03} {result.describe_score(trial)}  {describe_model(trial)}")
    if result.front:
        print(f"front     {len(result.front)} non-dominated (Pareto-optimal) trials")
        for trial in result.front:
            values = "  ".join(f"{name} {trial.value(name):.4g}" for name in result.plan.objectives)
            print(f"          {values}  {describe_model(trial)}")
    if result.placement_verdict:
        print(f"placement {result.placement_verdict}")
        resume = format_command("search --resume", result.search, storage, "--stop", "never")
        print(f"stopped   early: {result.saved} planned trials were not needed; train them: {resume}")
    for warning in result.warnings:
        print(f"warning: {warning}")
    if result.grid is not None:
        _print_grid(result.grid, str(result.folder))
    if result.missing:
        print(f"error     {missing_cells(result.missing)}")
        print(f"          train them: {format_command('search --resume', result.search, storage)}")
    if result.failure:
        print(f"error     {result.failure}; details are in {result.folder}")
    if result.stopped:
        resume = format_command("search --resume", result.search, storage)
        print(f"stopped   {result.unfinished} trials are unfinished; resume: {resume}")
    if result.untracked:
        print(
            f"warning   {result.untracked} trials were not written to MLflow completely. When it is "
            f"available: {format_command('sync', result.search, storage)}  "
            f"(errors are in {result.folder}/log.txt)"
        )
    if result.best is not None:
        for line in _next(result, storage):
            print(line)


def _print_grid(table: "Table", folder: str) -> None:
    """Print the table of a grid, and the paths of its files."""
    from automl.report.grid_table import FILES, merged, text_lines

    print()
    for line in text_lines(merged(table)):
        print(printable(line))
    print(f"\ntable     {' and '.join(f'{folder}/{name}' for name in FILES)}")


def _next(result: "Search", storage: str) -> Iterator[str]:
    """Yield the next commands, each with its purpose."""
    from automl.base.command_line import format_command
    from automl.config.user_code import trust_option

    assert result.best is not None
    trust = trust_option(result.best.config.user_code())
    commands = {
        "test the best trials against the baseline with new seeds": "confirm --search",
        "write a page with results and plots": "report --search",
        "export the confirmed winner, or else the best trial": f"export{trust} --best --search",
    }
    for i, (purpose, command) in enumerate(commands.items()):
        out = ["--out", f"exports/{result.search}"] if command.startswith("export") else []
        yield f"{'' if i else 'next':9} {format_command(command, result.search, storage, *out)}"
        yield f"{'':13} {purpose}"
    yield f"{'':9} mlflow ui"
    yield f"{'':13} compare all trials: {result.page}"
