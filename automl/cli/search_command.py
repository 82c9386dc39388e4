"""`automl search`, `automl studies` and `automl study`, with their final output."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from automl.base.errors import InputError
from automl.base.escape import printable
from automl.base.options import format_command
from automl.base.serialise import to_json
from automl.base.terminal import tell, wrap
from automl.base.units import format_duration, pluralize
from automl.cli.command import JSON_OPTION, only, option, print_json, with_options_of
from automl.config.search_options import FILES, NOUNS, SEARCH, RuntimeOptions, StudyOptions

if TYPE_CHECKING:
    from automl.config.settings import ParsedSettings
    from automl.search.run_search import Search


@with_options_of(*NOUNS, RuntimeOptions)
def search(
    ctx: typer.Context,
    *,
    resume: str | None = option(None, "Resume this search; auto: --name if it exists.", FILES),
    confirm: bool = option(
        False, "Confirm the finalists afterwards, in the same Ray session.", SEARCH, "--confirm", rare=True
    ),
    top: int | None = option(None, "Number of finalists, with --confirm.", SEARCH, shown="3", rare=True),
    dry_run: bool = option(False, "Estimate cost and power without training.", None, "--dry-run"),
    trust: bool = option(False, "Allow resuming code that only the files name.", FILES, "--trust", rare=True),
    as_json: bool = JSON_OPTION,
    **values: Any,
) -> None:
    """Search for attention types, sites and hyperparameters."""
    if sys.stderr.isatty():  # the imports take seconds
        tell("loading PyTorch and Ray ...")
    finalists = _check_confirm(values, confirm=confirm, top=top)
    seeds = None if confirm else values["seeds"]
    if resume is not None and resume != "auto":
        begin = _resume(ctx, resume, values, seeds, trust)
    else:
        from automl.search.prepare import open_settings
        from automl.search.run_search import start_or_resume, start_search

        if (trials := values["trials"]) is not None and not trials.removeprefix("-").isdecimal():
            raise InputError(f"--trials must be a number; got {trials!r}. +N needs --resume")
        chosen: dict[str, Any] = {"trials": None if trials is None else int(trials)}
        chosen |= {"space": values["space"] or "", "seeds": 1 if seeds is None else seeds}
        settings = open_settings({**values, **chosen}, resume=resume is not None)
        if dry_run:
            print_preview(settings, as_json)
            return

        begin = partial(start_search if resume is None else start_or_resume, settings)
    confirmed: dict[str, Any] = {}
    if confirm:
        from automl.cli.judge_commands import print_confirm
        from automl.judge.run_confirm import run_confirm
        from automl.tracking.process import prepared
        from cluster.connect import keep_ray

        with prepared(), keep_ray():
            result = begin()
            print_search(result, values["storage"])
            if result.best is not None:
                own = {key: values[key] for key in ("storage", "space", "callbacks")}
                verdict = run_confirm(result.search, **own, **finalists, trust=trust)
                print_confirm(verdict, values["storage"])
                confirmed = {"confirmation": verdict.value}
    else:
        result = begin()
        print_search(result, values["storage"])
    if as_json:
        print_json({**to_json(result), **confirmed})
    if result.best is None or result.missing:
        sys.exit(1)


def _check_confirm(values: Mapping[str, Any], *, confirm: bool, top: int | None) -> dict[str, Any]:
    """Return the options of `--confirm`. Raise InputError before the search if one is invalid."""
    seeds = values["seeds"]
    if top is not None and not confirm:
        raise InputError(f"--top {top} needs --confirm; add --confirm, or leave --top out")
    if confirm and values["sampler"] == "grid" and seeds is not None:
        raise InputError(
            f"--seeds {seeds} is ambiguous with both --sampler grid and --confirm; leave --confirm out, and "
            f"confirm afterwards with automl confirm --seeds N"
        )
    options: dict[str, Any] = {
        key: value for key, value in (("top", top), ("seeds", seeds)) if value is not None
    }
    if confirm:
        from automl.judge.protocol import Options

        Options(**options).check_new()
    return options


def _resume(
    context: typer.Context, name: str, values: Mapping[str, Any], seeds: int | None, trust: bool
) -> Callable[[], "Search"]:
    from automl.config.settings import SCHEDULING_OPTIONS
    from automl.search.run_search import resume_search

    allowed = ("resume", "space", "trials", "budget", "storage", "trust")
    only(context, *allowed, "as_json", "confirm", "top", "seeds", *SCHEDULING_OPTIONS)
    return partial(
        resume_search,
        name,
        seeds=seeds,
        trust=trust,
        **{key: values[key] for key in SCHEDULING_OPTIONS if values[key] not in (None, ())},
        **{key: values[key] for key in ("storage", "space", "trials", "budget")},
    )


def print_preview(settings: "ParsedSettings", as_json: bool = False) -> None:
    """Print the forecast of a search."""
    from automl.search.preview import preview

    forecast = preview(settings, lambda text: tell(f"{text} ..."))
    for line in forecast.lines():
        print(printable(line))
    if as_json:
        print_json(to_json(forecast))


def print_search(result: "Search", storage: str) -> None:
    """Print the best trials, warnings and errors, and the next commands."""
    from automl.search.result import missing_cells
    from search.record import State

    counts = result.counts
    print(
        f"search {result.search}: {pluralize(counts[State.COMPLETE], 'trials')} complete, "
        f"{counts[State.PRUNED]} pruned, {counts[State.INFEASIBLE]} infeasible, "
        f"{counts[State.ERROR]} errors, {format_duration(result.seconds)}"
    )
    _print_leaders(result)
    for warning in result.warnings:
        print(f"warning: {warning}")
    if result.grid is not None:
        from automl.report import grid_table

        print()
        for line in grid_table.text_lines(grid_table.merged(result.grid)):
            print(printable(line))
        print(f"\ntable     {' and '.join(f'{result.folder}/{name}' for name in grid_table.FILES)}")
    if result.missing:
        print(f"error     {missing_cells(result.missing)}")
        print(f"          train them: {format_command('search --resume', result.search, storage)}")
    if result.failure:
        print(f"error     {result.failure}; details are in {result.folder}")
    if result.stopped:
        resume = format_command("search --resume", result.search, storage)
        print(f"stopped   {pluralize(result.unfinished, 'trials are unfinished')}; resume: {resume}")
    if result.untracked:
        print(
            f"warning   {pluralize(result.untracked, 'trials were')} not written to MLflow completely. When "
            f"it is available: {format_command('sync', result.search, storage)}  "
            f"(errors are in {result.folder}/log.txt)"
        )
    if result.best is not None:
        for line in _next(result, storage):
            print(line)


def _print_leaders(result: "Search") -> None:
    from automl.search.result import describe_model
    from search.record import model_name, placement_names

    leaders = {"best": result.best, "baseline": result.baseline}
    if (full := result.metadata.settings.question.full) is not None:
        leaders[f"{full} full"] = result.best_with_full(full)
    for title, trial in leaders.items():
        if trial is None:
            print(f"{title:9} no such trial completed")
        elif title == "baseline" and trial is result.best:
            print(f"{title:9} the best trial is the baseline")
        else:
            run = result.runs.get(trial.number) or "not in MLflow yet"
            print(f"{title:9} {result.describe_score(trial)}  {describe_model(trial)}  (run {run})")
    for line in wrap("original", result.original):
        print(line)
    if len(result.leading) > 1:
        print("leading")
        configs = [trial.config for trial in result.leading]
        several = len({model_name(config) for config in configs}) > 1
        for trial, name in zip(result.leading, placement_names(configs), strict=True):
            model = f"{model_name(trial.config)}, " if several else ""
            print(f"          {trial.number:03} {result.describe_score(trial)}  {model}{name}")


def _next(result: "Search", storage: str) -> Iterator[str]:
    """Yield the next commands, each with its purpose."""
    from automl.storage.user_code import trust_option

    assert result.best is not None
    trust = trust_option(result.best.config.user_code())
    commands = {
        "test the best trials against the baseline with new seeds": "confirm --search",
        "write a page with results and plots": "report --search",
        "export the confirmed winner, or else the best trial": f"export{trust} --best --search",
    }
    if result.at_chance:
        yield "next      search again as the warning says: a confirmation of these trials would show nothing"
        commands = {"write a page with results and plots": "report --search"}
    for i, (purpose, command) in enumerate(commands.items(), start=result.at_chance):
        out = ["--out", f"exports/{result.search}"] if command.startswith("export") else []
        yield f"{'' if i else 'next':9} {format_command(command, result.search, storage, *out)}"
        yield f"{'':13} {purpose}"
    yield f"{'':9} mlflow ui"
    yield f"{'':13} compare all trials: {result.page}"


def studies() -> None:
    """List the published experiments that `automl study` can repeat."""
    from automl.search.studies import list_studies

    for study in list_studies().values():
        print(f"{study.name:20} {study.summary}")
    print("\nautoml study NAME --small runs a small version in minutes, on data of the package")


@with_options_of(StudyOptions)
def study(
    context: typer.Context,
    *,
    dry_run: bool = option(False, "Estimate the duration without training.", None, "--dry-run"),
    **values: Any,
) -> None:
    """Repeat a published experiment, and print both tables.

    Resume a study that was stopped. Add seeds to a finished one.
    """
    from automl.search.studies import run_study, study_settings

    chosen = {key: value for key, value in values.items() if value is not None}
    if dry_run:
        print_preview(study_settings(**chosen))
        return
    result = run_study(**chosen)
    for table in result.tables:
        print()
        for line in table.lines():
            print(printable(line))
    print(f"\nsource    {result.study.source}")
    print(f"tables    {', '.join(map(str, result.files))}")
    if result.missing:
        from automl.search.result import missing_cells

        print(f"error     {missing_cells(result.missing)}; run the same command again to train them")
        sys.exit(1)
