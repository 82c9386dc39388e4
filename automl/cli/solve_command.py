"""`automl solve`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from automl.cli.command import print_json
from automl.cli.options import JSON_OPTION, STORAGE_OPTION, TRUST_OPTION, option, passed_on

if TYPE_CHECKING:
    from automl.search.solve import SolvedPoint, SolveResult


def solve(
    context: typer.Context,
    search: Annotated[str | None, typer.Argument(help="Name of the search. Default: the latest.")] = None,
    max_latency_ms: float | None = option(None, "Limit on the latency of one input in ms."),
    max_params: str | None = option(None, "Limit on parameters, such as 5M."),
    max_macs: str | None = option(None, "Limit on multiply-accumulates, such as 2G."),
    max_memory: str | None = option(None, "Limit on the memory of a step, such as 4GB."),
    full: int | None = option(None, "Number of full layers of a hybrid decoder."),
    costs: str | None = option(None, "File of automl cost --export-costs, for another machine."),
    out: Path | None = option(None, "File of the answer, for automl confirm --solve."),
    space: str | None = option(None, "Space, if that of the search was in a notebook or its file has moved."),
    storage: str = STORAGE_OPTION,
    trust: bool = TRUST_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Find the best placement under limits without training."""
    from automl.base.serialise import write_json
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
    from automl.base.escape import printable
    from automl.base.options import format_command
    from automl.base.units import pluralize
    from automl.search.solve import show_cost, show_limit

    metric, best = result.metric, result.best

    def gain(point: "SolvedPoint") -> str:
        interval = f"{metric.scale * point.low:+.3g} to {metric.scale * point.high:+.3g}"
        return f"{metric.scale * point.gain:+.3g} ({interval})"

    yield printable(f"placement {best.placement}")
    yield (
        f"gain      {gain(best)} {metric.gap_unit} in {metric.name} over {result.baseline}, expected with "
        f"90 % interval"
    )
    yield f"          better than {result.baseline} with {best.better:.0%}"
    if result.matters < 1:
        yield f"          placements make a difference with {result.matters:.0%}; the interval assumes that"
    trained = f"in {pluralize(best.trials, 'trial')}" if best.trials else "in no trial yet"
    yield f"trained   {trained}; with the hyperparameters of trial {result.trial}, the best by the model"
    for name, limit in result.limits.items():
        how = "" if name in ("params", "macs") else ", predicted from its modules"
        yield f"{name:9} {show_cost(name, best.costs[name])} ({show_limit(name, limit)}){how}"
    for name, front in result.fronts.items():
        yield f"front     {name}, {metric.name} gained with 90 % interval, placement"
        rows = [(show_cost(name, point.costs[name]), gain(point), point.placement) for point in front]
        widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]]
        for cost, gained, placement in rows:
            yield printable(f"          {cost:>{widths[0]}}  {gained:{widths[1]}}  {placement}")
    if out is not None:
        confirm = format_command("confirm --search", result.search, result.storage, "--solve", str(out))
        yield f"next      {confirm}"
