"""Final output of `automl search`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from automl.base.escape import printable

if TYPE_CHECKING:
    from automl.report.figure import Table
    from automl.search.result import SearchResult


def print_search(result: "SearchResult", storage: str) -> None:
    """Print the best trials, warnings and errors, and the next commands."""
    from automl.base.command_line import format_command

    print(
        f"search {result.search}: {result.completed} trials complete, {result.pruned} pruned, "
        f"{result.infeasible} infeasible, {result.errors} errors, {result.seconds:.0f} s"
    )
    for title, trial in (("best", result.best), ("baseline", result.baseline)):
        if trial is None:
            print(f"{title:9} no trial completed")
        else:
            run = trial.run_id or "not in MLflow yet"
            print(f"{title:9} {trial.metric} {trial.summary}  {trial.about}  (run {run})")
    if len(result.leading) > 1:
        print("leading")
        for trial in result.leading:
            print(f"          {trial.number:03} {trial.metric} {trial.summary}  {trial.about}")
    if result.front:
        print(f"front     {len(result.front)} non-dominated (Pareto-optimal) trials")
        for trial in result.front:
            values = "  ".join(f"{name} {value:.4g}" for name, value in trial.objectives.items())
            print(f"          {values}  {trial.about}")
    if result.placement_verdict:
        print(f"placement {result.placement_verdict}")
        resume = format_command("search --resume", result.search, storage, "--stop", "never")
        print(f"stopped   early: {result.saved} planned trials were not needed; train them: {resume}")
    for warning in result.warnings:
        print(f"warning: {warning}")
    if result.grid is not None:
        _print_grid(result.grid, result.folder)
    if result.missing:
        from automl.search.result import missing_cells

        print(f"error     {missing_cells(result.missing)}")
        print(f"          train them: {format_command('search --resume', result.search, storage)}")
    if result.failure:
        print(f"error     {result.failure}; details are in {result.folder}")
    if result.stopped:
        resume = format_command("search --resume", result.search, storage)
        print(f"stopped   {result.running} trials are unfinished; resume: {resume}")
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


def _next(result: "SearchResult", storage: str) -> Iterator[str]:
    """Yield the next commands, each with its purpose."""
    from automl.base.command_line import format_command
    from automl.config.user_code import trust_option
    from search.config import TrialConfig

    assert result.best is not None
    trust = trust_option(TrialConfig.from_json(result.best.config).user_code())
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
