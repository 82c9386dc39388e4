"""The page: one HTML file that contains everything it shows and makes no network requests."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from automl.base.command_line import format_command
from automl.base.escape import printable, shell
from automl.base.units import format_count, format_duration, pluralize
from automl.confirm.written import WrittenVerdict
from automl.report.failures import failures, reasons
from automl.report.figure import scripts, stylesheet
from automl.report.listing import listing, repeat
from automl.report.plot import Cell, Plot, Table
from automl.report.read import SearchData
from search.config import CommandModel
from search.record import State
from search.study import STUDY_FILE


@dataclass(frozen=True, kw_only=True)
class Section:
    """Plots that belong together.

    With `dense`, plots of different heights are set without gaps, column by column.
    """

    id: str
    title: str
    lead: str
    plots: Sequence[Plot]
    dense: bool = False


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The top of the page: a headline and a line of figures.

    Attributes:
        tone: A CSS class of the page: an outcome, or `open`.
        mark: A character before the state.
        state: The state of the confirmation in a few words.
        title: The headline.
        figures: The line of figures below it.
        lines: Further lines, such as the split and the number of seeds.
        command: A command to run next.
        warnings: Reasons to doubt the verdict.
        remarks: Results of the other variants, and advice.
        earlier: A line for each earlier confirmation.
    """

    tone: str
    mark: str
    state: str
    title: str
    figures: str = ""
    lines: Sequence[str] = ()
    command: str = ""
    warnings: Sequence[str] = ()
    remarks: Sequence[str] = ()
    earlier: Sequence[str] = ()


@dataclass(frozen=True)
class _Shown:
    """A table with its columns of numbers marked."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numeric: Sequence[bool]


@dataclass(frozen=True)
class _Item:
    plot: Plot
    drawing: Markup | None
    table: _Shown | None


@dataclass(frozen=True)
class _Part:
    id: str
    title: str
    lead: str
    items: Sequence[_Item] = field(default_factory=list)
    dense: bool = False


def write_page(search: SearchData, forest: Plot | None, sections: Sequence[Section]) -> str:
    """Return the page as a string."""
    environment = Environment(
        loader=PackageLoader("automl.report", ""),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["shown"] = shown
    environment.globals["attributes"] = _attributes
    plots = [*([forest] if forest else []), *(plot for part in sections for plot in part.plots)]
    trials = listing(search)
    items = {plot.name: _Item(plot, _drawing(plot), _numbers(plot.table)) for plot in plots}
    data = {name: rows for plot in plots if plot.figure for name, rows in plot.figure.data.items()}
    page = environment.get_template("page.html").render(
        search=search,
        read_at=_time(search.read_at),
        banners=banners(search),
        headline=headline(search),
        numbers=numbers(search),
        forest=items[forest.name] if forest else None,
        sections=[
            _Part(s.id, s.title, s.lead, [items[plot.name] for plot in s.plots], s.dense) for s in sections
        ],
        failures=_numbers(failures(search)),
        failed=_failed(search),
        listing=_numbers(trials.table),
        same=trials.same,
        repeat=repeat(search),
        dashboard=None if search.metadata.settings.is_referee else _dashboard(search),
        styles=Markup(stylesheet()),
        scripts=Markup(scripts(data)),
    )
    return page


def _visible(value: Any) -> Any:
    """Return text without control characters."""
    return printable(value, keep="\n\t") if type(value) is str else value


def _drawing(plot: Plot) -> Markup | None:
    """Return the element of a figure. Screen readers read only its label."""
    return None if plot.figure is None else Markup(plot.figure.element(f"{plot.title}. {plot.says}"))


def _numbers(table: Table | None) -> _Shown | None:
    if table is None:
        return None
    numeric = []
    for i in range(len(table.columns)):
        known = [row[i] for row in table.rows if row[i] is not None]
        numeric.append(bool(known) and all(isinstance(cell, int | float) for cell in known))
    return _Shown(table.columns, table.rows, numeric)


def shown(cell: Cell) -> str:
    """Return a cell of a table as text."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if abs(cell) >= 1e5:
        return format_count(cell)
    return str(cell) if isinstance(cell, int) else f"{cell:.4g}"


def _attributes(cell: Cell, table: _Shown, column: int) -> Markup:
    if not table.numeric[column]:
        return Markup(' class="w"' if isinstance(cell, str) and len(cell) > 24 else "")
    exact = not isinstance(cell, int | float) or shown(cell) == f"{cell:g}"
    return Markup(' class="n"' if exact else f' class="n" data-v="{cell:.9g}"')


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(seconds)).strip()


def banners(search: SearchData) -> list[str]:
    """Return the lines at the top of the page: the scale of a study, and warnings."""
    scale = [search.metadata.scale] if search.metadata.scale else []
    if not search.unfinished:
        return scale
    trials = "1 trial" if search.unfinished == 1 else f"{search.unfinished} trials"
    planned = search.plan.trials
    of = f" of {planned}" if planned is not None else ""
    return [
        *scale,
        f"The search had not ended when this page was made, {_time(search.read_at)}: {trials} had begun and "
        f"not ended, {len(search.trials)}{of} had begun. Make the report again for what came later; if the "
        f"search was stopped, resume it with {_command('search --resume', search)}",
    ]


def _command(words: str, search: SearchData) -> str:
    """Return a path relative to the folder where the report was made."""
    return format_command(words, search.metadata.name, search.metadata.settings.storage)


def _dashboard(search: SearchData) -> str:
    """Return the command that plots hyperparameters."""
    return shell(["optuna-dashboard", str(search.folder / STUDY_FILE)])


FEW_EPOCHS = 3  # below which a headline says how few they were

_MARKS = {"better": "▲", "worse": "▼", "equivalent": "≈", "undecided": "?", "cannot tell": "?"}


def headline(search: SearchData) -> Headline:
    """Return the verdict, or how to get one."""
    command = _command("confirm --search", search)
    if not search.verdicts:
        return _open(search, command)
    verdict, earlier = search.verdicts[-1], [_line(v) for v in reversed(search.verdicts[:-1])]
    seeds = "1 paired seed" if verdict.seeds == 1 else f"{verdict.seeds} paired seeds"
    sequential = ", sequential" if verdict.sequential else ""
    if search.metadata.settings.is_referee:
        command, word = _command("referee --resume", search), "Comparison"
        measured = f"{seeds} of each command; comparison {verdict.confirmation}{sequential}."
    else:
        word = "Confirmation"
        measured = (
            f"{seeds} that no trial of the search had, on the {verdict.split} split, "
            f"{'given equal time' if search.metadata.settings.equal == 'time' else 'for equal epochs'}; "
            f"confirmation {verdict.confirmation}{sequential}."
        )
    if not verdict.complete:
        return Headline(
            tone="open",
            mark="…",
            state=f"{word} under way",
            title=verdict.headline,
            figures=verdict.figures,
            lines=[f"So far from {measured} If it was stopped, resume it with the command below."],
            command=command,
            warnings=verdict.warnings,
            remarks=verdict.remarks,
            earlier=earlier,
        )
    outcome = verdict.verdict or "undecided"
    return Headline(
        tone=outcome.replace(" ", "-"),
        mark=_MARKS[outcome],
        state=f"{'Compared' if word == 'Comparison' else 'Confirmed'}: {verdict.verdict or 'no verdict'}",
        title=verdict.headline,
        figures=verdict.figures,
        lines=[f"From {measured}"],
        warnings=verdict.warnings,
        remarks=verdict.remarks,
        earlier=earlier,
    )


def _open(search: SearchData, command: str) -> Headline:
    best, baseline = search.best, search.baseline
    lines = []
    if best is None:
        title = "No trial has completed."
    elif baseline is None:
        title = f"Best so far: {search.where(best)}, {search.show(best)}. No baseline has completed."
    elif best is baseline:
        title = f"The best trial is a baseline: {search.show(best)}."
    else:
        title = (
            f"Not confirmed: {search.where(best)} scored {search.show(best)}, the best baseline "
            f"{search.show(baseline)}."
        )
        gain = search.sign * (search.score(best) - search.score(baseline))
        lines.append(
            f"Each is one training with one seed, the best of {pluralize(len(search.done), 'trial')} on the "
            f"split that chose it: a difference of {search.gap(gain).lstrip('+')} is what noise and choice "
            f"alone can make, and proves nothing."
        )
        epochs = min(trial.resource for trial in (best, baseline))
        if epochs < FEW_EPOCHS:
            lines.append(
                f"They trained for {pluralize(epochs, 'epoch')} only, which may rank them otherwise."
            )
    lines.append("To test whether attention helps, on fresh seeds and the test split, run:")
    return Headline(tone="open", mark="○", state="Not confirmed", title=title, lines=lines, command=command)


def _line(verdict: WrittenVerdict) -> str:
    if not verdict.complete:
        return f"Confirmation {verdict.confirmation}, not finished: {verdict.seeds} seeds."
    return f"Confirmation {verdict.confirmation}: {verdict.headline}. {verdict.figures}"


def numbers(search: SearchData) -> list[tuple[str, str, str]]:
    """Return the figures at the top of the page: title, value, detail."""
    counts, items = search.counts, []
    referee = search.metadata.settings.is_referee
    for title, trial in (
        ()
        if referee
        else (
            ("best in the search", search.best),
            ("best baseline in the search", search.baseline),
        )
    ):
        value = search.show(trial) if trial else "none"
        what = (
            f"validation {search.metric}, trial {trial.number}: {search.where(trial)}"
            if trial
            else "none has completed"
        )
        items.append((title, value, what))
    parts = [
        f"{counts[state]} {word}"
        for state, word in (
            (State.COMPLETE, "complete"), (State.PRUNED, "pruned"), (State.INFEASIBLE, "infeasible"),
            (State.ERROR, "errors"), (State.RUNNING, "running"),
        )
        if counts[state]
    ]  # fmt: skip
    items.append(("trials", str(len(search.trials)), ", ".join(parts)))
    plan, equal = search.plan, search.metadata.settings.equal
    if referee:
        return [*items, *_command_numbers(search)]
    seconds = sum(m.get("seconds", 0.0) for trial in search.trials for m in trial.history)
    items.append(
        (
            "budget of a trial",
            pluralize(plan.budget, "epoch"),
            f"equal {equal}; {format_duration(seconds)} of training in all",
        )
    )
    return items


def _command_numbers(search: SearchData) -> Iterator[tuple[str, str, str]]:
    """Yield the commands of a comparison and their time as figures at the top of the page."""
    verdict = search.verdicts[-1] if search.verdicts else None
    for variant in verdict.variants if verdict else ():
        seconds, processor = variant.mean_cost("seconds"), variant.mean_cost("processor_seconds")
        spent = "no run has ended" if seconds is None else f"{seconds:.3g} s a run"
        if processor is not None:
            spent += f", {processor:.3g} s of processors"
        assert isinstance(variant.config.model, CommandModel), "of a comparison of commands"
        yield variant.name, spent, variant.config.model.command


def _failed(search: SearchData) -> str:
    groups = reasons(search)
    infeasible, errors = search.counts[State.INFEASIBLE], search.counts[State.ERROR]
    if search.metadata.settings.is_referee:
        return f"{errors} runs failed." if errors else "No run failed."
    if not groups:
        return "Nothing: every trial could be trained, and none broke."
    return (
        f"{infeasible} infeasible and {errors} broken, for {len(groups)} reasons; those that differ in "
        f"numbers alone are one. The sampler learned to avoid what is infeasible."
    )
