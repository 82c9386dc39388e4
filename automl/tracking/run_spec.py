"""Experiment, names, tags and parameters of tracked runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from automl.base.escape import markdown, markdown_code, mlflow_key, redact, shell
from automl.base.serialise import to_json
from automl.storage.metadata import Provenance, SearchMetadata
from automl.storage.storage import Storage
from search.config import TrialConfig
from search.metric import Metric
from search.record import (
    TrialRecord,
    attention_options,
    chosen_options,
    format_options,
    model_name,
    model_options,
)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Run that trials belong to. It can be sent to another process if `checkpoint` can.

    experiment: the name of MLflow's experiment.
    checkpoint: the folder of a trial's checkpoint.
    name: of the run above those of the trials, such as the search's; without one they are on their own.
    tags: of that run. identity: tells it from others of its name, so that it is found and continued.
    above: the identity of the run that it is a child of.
    note: what MLflow shows as its description, in Markdown; what comes of it is put before that.
    metric: of the trials, which formats the best score of the description; without it, that has four digits.
    params: its parameters. settings: an artifact of it.
    source: tags of every run: the command and the code's commit.
    data: the digest of the data. splits: of it that are used.
    alone: the name of the only trial, where there is no run above it; its run is found and continued by that.
    """

    experiment: str
    checkpoint: Callable[[TrialRecord], Storage]
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""
    above: str = ""
    note: str = ""
    metric: Metric | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    data: str = ""
    splits: Sequence[str] = ("training", "validation")
    alone: str = ""


def search_run_spec(location: Storage, metadata: SearchMetadata) -> RunSpec:
    """Return the specification of a search's runs. `location` is the folder of the search."""
    settings, plan, command = metadata.settings, metadata.plan, metadata.provenance.command
    origin = markdown_code(shell(command)) if command else "a notebook"
    space, kept = settings.question.space_name, redact(str(metadata.location))
    note = f"Search of the space {markdown_code(space)} by {origin}, kept in {markdown_code(kept)}."
    return RunSpec(
        name=metadata.name,
        tags={SEARCH: metadata.name},
        identity=metadata.identity,
        experiment=settings.question.title,
        metric=plan.metric,
        checkpoint=partial(below, location),
        note=f"{note} {markdown(metadata.scale)}".rstrip(),
        source=source(metadata.provenance, metadata.scale),
        data=metadata.data,
        params={
            "space": space,
            "trials": plan.trials,
            "epochs": f"{plan.budget:g}",
            "equal": settings.terms.equal,
            "sampler": settings.plan.sampler,
            "metric": plan.metric.name,
            "seed": settings.question.seed,
            "data": metadata.data[:16],
        },
        settings=to_json(metadata),
    )


def flat(config: TrialConfig) -> dict[str, Any]:
    """Convert a configuration to a few readable parameters for MLflow's table and plots."""
    model, training = config.model, to_json(config.training.hyperparameters())
    return {
        "backbone": model.backbone,
        "options": format_options(model_options(config)) or "none",
        "modules": len(model.placement),
        "types": " + ".join(spec.name for spec in model.placement.values()) or "none",
        "sites": " + ".join(model.placement) or "none",
        "attention_options": format_options(attention_options(config)) or "none",
        **chosen_options(config),
        **training,
        **{key: value for key, value in asdict(config.data).items() if key not in ("path", "subset")},
        "seed": config.seed,
    }


def source(provenance: Provenance, scale: str = "") -> dict[str, str]:
    """Return the tags of every run: command, commit and version of the code, and the scale of a study."""
    command, version = provenance.command, provenance.versions.get("attention-automl", "unknown")
    name, kind = (shell(command), "LOCAL") if command else ("notebook", "NOTEBOOK")
    tags = {SOURCE: name, SOURCE_TYPE: kind, COMMIT: provenance.commit, VERSION: version, SCALE: scale}
    return {key: value for key, value in tags.items() if value}


def below(location: Storage, trial: TrialRecord) -> Storage:
    """Return the folder of a trial's checkpoint below `location`."""
    return location / trial.folder


EPOCHS_DONE = "epochs_done"  # may be a fraction

# Keys of an epoch's record and of a profile, with the name in MLflow and the factor to its unit.
EPOCH: Mapping[str, tuple[str, float]] = {
    "epoch": (EPOCHS_DONE, 1),
    "resource": ("baseline_epochs", 1),
    "learning_rate": ("lr", 1),
    "seconds": ("epoch_seconds", 1),
    "processor_seconds": ("epoch_processor_seconds", 1),
}
PROFILE: Mapping[str, tuple[str, float]] = {
    "memory": ("memory_mb", 1e-6),
    "cache": ("cache_mb", 1e-6),
    "latency": ("latency_ms", 1),
    "epoch": ("measured_epoch_seconds", 1),
    "validation": ("validation_share_of_epoch", 1),
}

# MLflow's own: the description that it shows, the command and the commit of the code.
NOTE, SOURCE, COMMIT = "mlflow.note.content", "mlflow.source.name", "mlflow.source.git.commit"
SOURCE_TYPE, DATA_CONTEXT = "mlflow.source.type", "mlflow.data.context"
PARENT = "mlflow.parentRunId"
# Of every run: the version of this package, and of a study's runs what it trains and how its source differs.
VERSION, SCALE = "automl.version", "automl.scale"
SEARCH, IDENTITY, TRIAL = "automl.search", "automl.identity", "automl.trial"
BEST, CHECKPOINT = "automl.best_run", "automl.checkpoint"
# Of a confirmation's run: the search. Of a search's: the confirmed winner's run, the verdict's headline
# and its other lines.
CONFIRMS, CONFIRMED = "automl.confirms", "automl.confirmed_run"
VERDICT, FIGURES = "automl.verdict", "automl.figures"


def named(values: Mapping[str, float], names: Mapping[str, tuple[str, float]]) -> dict[str, float]:
    """`values` as MLflow has them; those that are not in `names` keep theirs."""
    result = {}
    for key, value in values.items():
        name, factor = names.get(key, (key, 1))
        result[mlflow_key(name)] = float(value) * factor
    return result


def run_name(trial: TrialRecord) -> str:
    """Return the name of a run. The placement comes first, since MLflow cuts names in tables and plots."""
    if trial.variant:
        return f"{trial.variant} seed {trial.config.seed}"
    return f"{trial.config.model.placement_name()} {trial.number:03d} {model_name(trial.config)}"


def verdict_numbers(verdict: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a verdict, which are columns of MLflow's table."""
    time = verdict.get("time") or {}
    numbers = {key: verdict.get(key) for key in ("difference", "p")}
    numbers |= {"seeds_used": verdict.get("seeds"), "time_ratio": time.get("mean")}
    intervals = {key: verdict.get(key) for key in ("interval", "interval_inputs")}
    for key, ends in {**intervals, "time_ratio": time and (time["low"], time["high"])}.items():
        numbers[f"{key}_low"], numbers[f"{key}_high"] = ends or (None, None)
    return {key: value for key, value in numbers.items() if value is not None}
