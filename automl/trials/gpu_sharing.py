"""Finds the fraction of a GPU for each trial: a short task on a whole GPU, before the trials start."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from automl.base.loading import Code, receive
from automl.config.runtime import runtime_for
from automl.config.settings import Settings
from automl.costs.gpu_fraction import GpuFraction, GpuUse, check_fraction, choose_fraction, measure_gpu_use
from automl.data import shared
from cluster.resources import TrialResources
from search.config import TrialConfig

LIMIT = 300.0  # seconds to wait for a GPU and the measurement


def trial_resources(settings: Settings, nodes: Sequence[Mapping[str, float]]) -> TrialResources:
    """Return the resources of a trial, with a whole GPU if any node has one and none was requested."""
    has_gpu = settings.gpus_per_trial is None and any(node.get("GPU") for node in nodes)
    return replace(settings.shape, gpus=1) if has_gpu else settings.shape


def find_fraction(
    settings: Settings,
    shape: TrialResources,
    nodes: Sequence[Mapping[str, float]],
    baseline: TrialConfig,
    *,
    trials: int | None,
    data: Mapping[str, Any] | None = None,
) -> GpuFraction | None:
    """Choose the fraction of a GPU for each trial, or check the one that the settings request.

    Args:
        settings: Settings of the search.
        shape: Result of `trial_resources`.
        nodes: Resources of each node.
        baseline: Configuration whose training is measured.
        trials: Number of trials. None if only the time is limited.
        data: Result of `session.share_data` if the data come from the storage.

    Returns:
        The fraction. None if there is no choice: trials get no GPU, the settings request whole ones, or the
        trials are commands.

    Raises:
        InputError: The baseline does not fit into the requested fraction.
    """
    requested = settings.gpus_per_trial
    if not shape.gpus or (requested or 0) >= 1 or not baseline.opens:
        return None
    if requested is None and shape.workers > 1:
        return GpuFraction(gpus=1, reason=f"its {shape.workers} workers cannot share one")
    measure = ray.remote(
        num_cpus=shape.cpus,
        num_gpus=shape.gpus,
        max_calls=1,
        resources=dict(shape.custom),
        label_selector=dict(shape.labels),
    )(_measure)
    runtime = {"precision": settings.precision, "compile": settings.compile}
    waiting = measure.remote(baseline, baseline.code(), data, shape.cpus, runtime)
    try:
        use = ray.get(waiting, timeout=LIMIT)
    except RayError as error:
        ray.cancel(waiting, force=True)
        cause = getattr(error, "cause", None) or error
        lines = str(cause).strip().splitlines() or [""]
        reason = f"the baseline could not be measured ({type(cause).__name__}: {lines[0]})"
        return GpuFraction(gpus=requested or 1, reason=reason)
    if requested is not None:
        return check_fraction(requested, use)
    with_gpu = [node for node in nodes if node.get("GPU")]
    at_once = [number for number in (trials, settings.concurrent) if number is not None]
    return choose_fraction(
        use,
        gpus=sum(node["GPU"] for node in with_gpu),
        cores=sum(node.get("CPU", 0) for node in with_gpu),
        cores_per_trial=shape.cpus,
        trials=min(at_once, default=None),
    )


def _measure(
    baseline: TrialConfig, code: Code, data: Mapping[str, Any] | None, cpus: float, runtime: dict[str, Any]
) -> GpuUse:
    """Measure what a training of the baseline takes of a GPU. Runs in a process of Ray."""
    receive(code)
    shared.use(data)
    return measure_gpu_use(baseline, runtime_for(cpus, 1, **runtime))
