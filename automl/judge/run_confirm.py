"""Compare the finalists of a search with its tuned baseline on fresh seeds: `automl confirm`.

The finalists become the variants of a comparison, whose trainings are those of `automl.judge.trainings`. A
comparison of commands, which has no search, is compared again here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.options import format_command, format_option, option_name, with_keywords_of
from automl.base.process import capture_library_logs
from automl.base.serialise import read_json
from automl.base.terminal import tell
from automl.base.units import pluralize
from automl.callbacks.user import UserCallbacks
from automl.config.runtime import Runtime
from automl.data import shared
from automl.judge.options import ConfirmOptions
from automl.judge.protocol import Confirmation, Options, confirmations, is_open
from automl.judge.trainings import begin, fresh_seeds, run_trainings
from automl.judge.variants import select_variants, with_placement
from automl.judge.verdict import ConfirmResult
from automl.storage.folder import check_not_lost, old_folder, resolve_search
from automl.storage.metadata import SearchMetadata, collect_provenance
from automl.storage.storage import Storage, check_not_temporary
from automl.storage.user_code import check_trusted, user_code
from automl.task import Task, open_task
from automl.task.opening import check_same_data
from search.config import TrialConfig
from search.record import Role, TrialRecord
from search.space import Space
from search.study import read_records, score_noise

OF_SEARCHES = ("top", "solve", "controls", "ablate")  # options that a referee does not have


@dataclass(frozen=True, kw_only=True)
class SolvedPlacement:
    """Answer of `automl solve`: a placement to confirm, as parameters of the search's space.

    It holds no names of code, so a file of another author can only choose from the space of the search.

    Attributes:
        search: The name of the search.
        identity: The identifier of the search.
        trial: The number of the trial whose hyperparameters it has.
        params: The parameters of the placement.
    """

    search: str
    identity: str
    trial: int
    params: dict[str, Any]


@with_keywords_of(ConfirmOptions)
def run_confirm(*search: Any, **options: Any) -> ConfirmResult:
    """Compare the finalists of a search with its tuned baseline on fresh seeds.

    An unfinished confirmation is resumed.

    Returns:
        The confirmation with its verdict.

    Raises:
        InputError: There is nothing to confirm, or options contradict those that the confirmation began with.

    Example:
        >>> import automl
        >>> confirmed = automl.run_confirm("example", top=1, seeds=6)
        >>> confirmed.verdict.complete
        True
    """
    asked = ConfirmOptions(*search, **options)
    if asked.solve is not None and asked.top not in (None, 1):
        raise InputError(f"--solve has one finalist; leave --top {asked.top} out")
    values = {f.name: getattr(asked, f.name, None) for f in fields(Options)}
    values |= {} if asked.solve is None else {"top": 1}
    chosen = {name: value for name, value in values.items() if value is not None}
    Options(**chosen)  # Report a mistake before anything is read.
    name, storage = resolve_search(asked.search, asked.storage)
    check_not_temporary(storage)
    with old_folder(name, storage) as (folder, metadata):
        shared.use_saved(folder, Storage(storage))
        records = read_records(folder, metadata.name, metadata.plan.needed)
        check_not_lost(folder, metadata.location)
        if asked.callbacks is not None:
            settings = metadata.settings.change(place={"callbacks": asked.callbacks})
            metadata = replace(metadata, settings=settings)
        code = user_code(metadata.settings.user_code(), records)
        check_trusted(f"confirming {metadata.name!r}", code, trust=asked.trust)
        called = UserCallbacks(metadata.settings.place.callbacks)
        draw_space = cache(partial(metadata.draw_space, asked.space))  # Only new trainings need the space.
        earlier = [Confirmation.read(path) for path in confirmations(folder)]
        if asked.again and earlier and earlier[-1].options.screen:
            raise InputError(f"{name!r} is of a ledger, which decides once; compare the change again there")
        is_comparison, finalist = not metadata.has_trials, None
        if is_comparison:
            _check_referee(name, storage, earlier, [option_name(n) for n in OF_SEARCHES if getattr(asked, n)])
        if asked.solve is not None:
            solve = format_command("solve", name, storage, "--out", str(asked.solve))
            finalist = _read_finalist(
                Path(asked.solve), metadata.identity, solve, draw_space().space, records
            )
        if earlier and not asked.again:
            confirmation = earlier[-1]
            _check_unchanged(name, confirmation, chosen, finalist)
        elif is_comparison:
            confirmation = _compare_again(earlier, chosen)
            begin(folder, confirmation)
        else:
            confirmation = _plan(
                folder, metadata, lambda: draw_space().space, records, chosen, finalist, earlier
            )
            begin(folder, confirmation)
        check_trusted(f"comparing {metadata.name!r}", confirmation.commands(), trust=asked.trust)
        confirm_folder = folder / confirmation.folder
        with capture_library_logs(confirm_folder / "log.txt"):
            if is_comparison:
                return run_trainings(confirm_folder, metadata, confirmation, called)
            config = confirmation.variant_set.variants[0].config
            return run_trainings(
                confirm_folder,
                metadata,
                confirmation,
                called,
                baseline=lambda: draw_space().baseline,
                data=lambda: open_data(folder, name, config, metadata.settings.terms.runtime),
                controls=asked.controls,
                ablate=asked.ablate,
            )


def _check_referee(name: str, storage: str, earlier: Sequence[Confirmation], refused: list[str]) -> None:
    """Raise InputError if options of searches are values for commands, or if there are no commands yet."""
    if refused:
        raise InputError(f"{name!r} compares commands; leave {', '.join(refused)} out")
    if not earlier:
        raise InputError(f"{name!r} was stopped before it began; delete its folder in {storage}")


def _check_unchanged(
    name: str, confirmation: Confirmation, chosen: Mapping[str, Any], finalist: TrialRecord | None
) -> None:
    """Raise InputError if the options contradict those that the confirmation began with."""
    began = vars(confirmation.options)
    other = {key: value for key, value in chosen.items() if began[key] != value}
    if other:
        kept = ", ".join(format_option(key, began[key]) for key in other)
        raise InputError(
            f"the confirmation of {name!r} began with {kept} and keeps it: changing options after "
            f"seeing scores would invalidate the verdict. Leave it out, or start another one on fresh seeds "
            f"with --again."
        )
    finalists = [v.config for v in confirmation.variant_set.variants if v.role is Role.FINALIST]
    if finalist is not None and finalist.config.model not in [config.model for config in finalists]:
        raise InputError(
            f"the confirmation of {name!r} began with another finalist than that of --solve; "
            f"start another one on fresh seeds with --again"
        )


def _read_finalist(
    file: Path, identity: str, solve: str, space: Space, trials: Iterable[TrialRecord]
) -> TrialRecord:
    """Return the finalist in a file of the command `solve`, as a trial of the search with these `trials`."""
    # Raises InputError if the file is damaged, or is that of another search.
    solved = read_json(SolvedPlacement, file, strict=False)
    if solved.identity != identity:
        raise InputError(f"{file} is the answer of another search, {solved.search!r}; run {solve}")
    trial = next((trial for trial in trials if trial.number == solved.trial), None)
    if trial is None:
        raise InputError(f"{file} names trial {solved.trial}, which the search does not have; run {solve}")
    config = with_placement(space, trial.config, {**trial.params, **solved.params})
    if space.as_baseline(config) == config:
        raise InputError(f"{file} has the baseline as its answer, so there is nothing to confirm")
    return TrialRecord(trial.number, config)


def _plan(
    folder: Path,
    metadata: SearchMetadata,
    space: Callable[[], Space],
    records: list[TrialRecord],
    chosen: Mapping[str, Any],
    finalist: TrialRecord | None,
    earlier: Sequence[Confirmation],
) -> Confirmation:
    """Return the plan of a new confirmation, with seeds that neither a trial nor an earlier one had."""
    if is_open(metadata.plan, records):
        resume = format_command("search --resume", metadata.name, metadata.storage)
        tell(
            f"warning: the search is unfinished; finalists are chosen among its "
            f"{pluralize(len(records), 'trials')} so far. To complete it first: {resume}"
        )
    number = 1 + max((confirmation.number for confirmation in earlier), default=0)
    used = {record.config.seed for record in records}
    used |= {seed for confirmation in earlier for seed in confirmation.seeds}
    options = Options(**chosen).check_new()
    variant_set = select_variants(
        records,
        metadata.plan,
        space(),
        metadata.settings.question,
        search=(metadata.name, metadata.storage),
        top=options.top,
        seeds=options.seeds,
        noise=score_noise(folder, metadata.name) if records else None,
        finalist=finalist,
    )
    task = open_data(folder, metadata.name, variant_set.variants[0].config, metadata.settings.terms.runtime)
    return Confirmation(
        number=number,
        options=options,
        seeds=fresh_seeds(used, options.seeds),
        variant_set=variant_set,
        provenance=collect_provenance(),
        inputs=task.size("test"),
        chance=task.chance("test"),
    )


def _compare_again(earlier: Sequence[Confirmation], chosen: Mapping[str, Any]) -> Confirmation:
    """Return the plan of another comparison of the same commands, with unused seeds."""
    latest, used = earlier[-1], {seed for confirmation in earlier for seed in confirmation.seeds}
    options = Options(**{**vars(latest.options), **chosen}).check_new()
    seeds, provenance = fresh_seeds(used, options.seeds), collect_provenance()
    return replace(latest, number=latest.number + 1, options=options, seeds=seeds, provenance=provenance)


def open_data(folder: Path, name: str, config: TrialConfig, runtime: Runtime) -> Task:
    """Decode the data if they are not cached. Raise InputError if they are not those of the search `name`."""
    config = config.load()
    check_same_data(config, folder, name)
    return open_task(config, runtime)
