"""Export a trained trial as files that work without this project, each checked against the model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from filelock import Timeout
from torch import nn

from automl.base.atomic import format_disk_full, locked, remove, sweep, temporary_path
from automl.base.errors import InputError
from automl.base.options import format_command
from automl.base.process import capture_library_logs
from automl.base.terminal import tell
from automl.config.runtime import Runtime
from automl.export import formats
from automl.export.checks import BATCH, check_parity, check_together, machine, measure_speed, score_card
from automl.export.chosen import Chosen, choose, choose_run, choose_training
from automl.export.destination import destination, is_full, open_up
from automl.export.export_result import CONFUSION, MOST_LABELS, README, ExportResult, model_card
from automl.export.formats import MLFLOW_MODEL, onnx_file, open_onnx
from automl.storage.folder import NamedSearch, resolve_search
from automl.storage.user_code import check_trusted
from automl.task import Task, open_task
from automl.task.deployment import (
    MODEL,
    TOKENIZER,
    TRANSFORMERS,
    Deployment,
    Interface,
    as_arrays,
    iterate_batches,
)
from automl.task.opening import check_source
from automl.tracking.runs import find_trial_run
from automl.training import checkpoint
from search.config import TrialConfig

INPUTS = 100  # number of test inputs for comparing the exported forms
COPIES = len(formats.FORMS) + 3  # number of written copies of the weights, with MLflow's
NOT_DECLARED = "the training function declares no model with trial.export"
EXPORTS = "exports"  # the folder of exports that are given no other


def run_export(
    out: str | Path | None = None,
    *,
    best: bool = False,
    baseline: bool = False,
    search: str | NamedSearch | None = None,
    run: str | None = None,
    storage: str | None = None,
    trust: bool = False,
) -> ExportResult:
    """Export the model of one trial as files that work without this project.

    Each exported form is compared with the trained model. The folder appears when all files are written and
    checked. It replaces an earlier export.

    Args:
        out: The folder. Default: `exports/NAME`.
        best: Export the confirmed winner, or else the best trial. That is the default with `search`.
        baseline: Export the best trial without attention.
        search: The name of the search or of a training, or its result. Default: the latest search in
            `storage`.
        run: The ID of an MLflow run, instead of a search.
        storage: The storage of the search. Default: that of the result, or `searches`.
        trust: Allow running the user-defined code of the configuration.

    Returns:
        The folder and the measurements.

    Raises:
        InputError: The choice is ambiguous, the checkpoint is not readable, the data have changed, the folder
            contains other files, the disk is full, or user-defined code would run without `trust`.
        RuntimeError: An exported form differs from the model by more than the task tolerates.

    Example:
        >>> import automl
        >>> exported = automl.run_export("exports/example", best=True, search="example")
        >>> (exported.folder / "model.onnx").exists()
        True
    """
    if search is not None and run is None and not baseline:
        best = True
    if best + baseline + (run is not None) != 1:
        raise InputError(
            "give the NAME of a search or training, or exactly one of --best, --baseline and --run ID"
        )
    if search is not None and run is not None:
        raise InputError(
            f"--search {resolve_search(search)[0]} cannot be combined with --run; give --best or --baseline "
            f"with it"
        )
    folder = None if out is None else destination(out)
    chosen = choose_run(run) if run is not None else _of_search(search, storage, baseline)
    if folder is None:
        folder = destination(Path(EXPORTS) / f"{chosen.short_name}{'-baseline' if baseline else ''}")
    return _export(folder, chosen, trust)


def _of_search(search: str | NamedSearch | None, storage: str | None, baseline: bool) -> Chosen:
    """Choose the trial of a search and find its run."""
    name, storage = resolve_search(search, storage)
    training = None if baseline else choose_training(name, storage)
    chosen = training or choose(name, storage, baseline=baseline)
    try:
        return replace(chosen, run_id=find_trial_run(chosen.identity, chosen.number, chosen.checkpoint))
    except InputError as error:
        sync = format_command("sync", name, storage)
        advice = "" if training is not None else f"; when MLflow is available, write it with {sync}"
        tell(f"warning: the model card has no MLflow run of {chosen.name!r}: {error}{advice}")
        return chosen


def _export(out: Path, chosen: Chosen, trust: bool) -> ExportResult:
    """Write all files of an export to `out`, or none."""
    tell(f"loading {chosen.name}, {chosen.what} ...")
    content = checkpoint.read(chosen.checkpoint, torch.device("cpu"))
    config = TrialConfig.from_json(content["config"])
    check_trusted(f"exporting {chosen.name!r}", config.user_code(), trust=trust)
    config = config.load()
    check_source(config, chosen.checkpoint)
    task = open_task(config, Runtime(device=torch.device("cpu"), precision="fp32"))
    model = task.checkpoint_model()
    try:
        model.load_state_dict(checkpoint.scored_weights(content))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(
            f"checkpoint {chosen.checkpoint} does not fit the model of its configuration; have the classes "
            f"of its data changed since? ({reason})"
        ) from error
    model.eval()
    unfinished = temporary_path(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with locked(out, timeout=1):
            sweep(out.parent, out.name)  # what exports that were killed have left
            unfinished.mkdir()
            with capture_library_logs(unfinished / "log.txt"):
                result = _write(unfinished, task, model, chosen, out, content["history"])
            (unfinished / "log.txt").unlink(missing_ok=True)
            open_up(unfinished)
            remove(out)
            unfinished.rename(out)
    except InputError:
        raise
    except Timeout as error:
        raise InputError(
            f"another process is exporting to {out}; wait until it has ended, or name another folder"
        ) from error
    except Exception as error:
        if is_full(error, unfinished):
            weights = sum(value.nbytes for value in model.state_dict().values())
            why = format_disk_full(out.parent, COPIES * weights)
            raise InputError(
                f"--out {out} cannot be written: {why}; free disk space, or name another"
            ) from error
        if isinstance(error, OSError):
            raise InputError(f"--out {out} cannot be written ({error.strerror or error})") from error
        raise
    finally:
        remove(unfinished)
    return result


def _write(
    folder: Path,
    task: Task,
    model: nn.Module,
    chosen: Chosen,
    out: Path,
    history: Sequence[Mapping[str, float]] = (),
) -> ExportResult:
    formats.save_weights(folder, model)
    test_inputs = task.graph_inputs("test", INPUTS)
    tell("scoring the test split ...")
    with torch.inference_mode():
        test = task.test_metrics(model, history)
    trained = task.deployments(model)
    tensors = {name: test_inputs.get(name, deployment.inputs) for name, deployment in trained.items()}
    inputs = {name: as_arrays(tensor) for name, tensor in tensors.items()}
    expected = {name: deployment.run(tensors[name]) for name, deployment in trained.items()}
    formats.bake(model)
    deployments = task.deployments(model)
    graphs = {
        name: Interface.of(deployment, inputs[name], expected[name])
        for name, deployment in deployments.items()
    }
    in_folders, reasons = task.save_folders(folder, model)
    left_out = _write_forms(folder, task, graphs, deployments) | reasons
    metadata = {
        "format": 3,
        "run_id": chosen.run_id,
        **formats.describe(graphs, deployments),
        "files": sorted({file for deployment in deployments.values() for file in deployment.files}),
        "left_out": left_out,
        "config": task.config.to_json(),
    }
    (folder / formats.CONFIG).write_text(json.dumps(metadata, indent=2))
    served = inputs | task.served_inputs("test", INPUTS)
    differences = check_parity(folder, task, deployments, inputs, served, expected)
    runs = {name: open_onnx(folder / onnx_file(name)) for name in graphs if onnx_file(name) not in left_out}
    differences = {**differences, **check_together(task, model, runs), **in_folders}
    tell("measuring the speed ...")
    speeds = {
        onnx_file(name): measure_speed(run, next(iterate_batches(inputs[name], BATCH)))
        for name, run in runs.items()
    }
    labels = formats.labels_of(deployments)
    scores = score_card(task, deployments[MODEL], "test", runs[MODEL]) if labels and runs else None
    result = ExportResult(
        folder=out,
        chosen=chosen,
        differences=differences,
        test=test,
        metrics=(*task.spec.metrics, task.metric),
        scores=scores,
        speeds=speeds,
        machine=machine(),
        decoding={context: (own, full) for context, own, full in task.decoding_times(model)},
        left_out=left_out,
        kind=metadata["kind"],
    )
    about: dict[str, Any] = {"labels": labels, "graphs": graphs}
    about["has_tokenizer"] = (folder / TRANSFORMERS / TOKENIZER).exists()
    (folder / formats.CARD).write_text(model_card(task, result, **about), encoding="utf-8")
    if (folder / TRANSFORMERS).exists():
        card = model_card(task, result, **about, for_hub=True)
        (folder / TRANSFORMERS / README).write_text(card, encoding="utf-8")
    if scores and len(scores.labels) > MOST_LABELS:
        scores.write_csv(folder / CONFUSION)
    return result


def _write_forms(
    folder: Path, task: Task, graphs: Mapping[str, Interface], deployments: Mapping[str, Deployment]
) -> dict[str, str]:
    """Write each form of the graphs, and return the reason for each that is left out."""
    left_out: dict[str, str] = {} if deployments else dict.fromkeys(formats.forms_of(MODEL), NOT_DECLARED)
    if not deployments:
        for file, code in task.rebuilding_files().items():
            (folder / file).parent.mkdir(exist_ok=True, parents=True)
            (folder / file).write_bytes(code)
    for name, deployment in deployments.items():
        for file, content in deployment.files.items():
            (folder / file).write_text(content, encoding="utf-8")
        tell(f"writing {' and '.join(formats.forms_of(name))} ...")
        left_out |= formats.save_programs(folder, name, deployment)
    without = [file for file in map(onnx_file, graphs or (MODEL,)) if file in left_out]
    if without:
        left_out[MLFLOW_MODEL] = f"it runs {without[0]}"
    else:
        tell(f"writing {MLFLOW_MODEL} ...")
        formats.save_mlflow(folder, graphs, deployments)
    return left_out
