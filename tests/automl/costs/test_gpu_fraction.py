"""The fraction of a GPU for each trial, from recorded measurements."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from automl.base.errors import InputError
from automl.base.units import format_size
from automl.config import device
from automl.config.runtime import MEMORY_FRACTION, Runtime, memory_fraction
from automl.costs import gpu_fraction
from automl.costs.gpu_fraction import CONTEXT, SPARE, TRIALS, GpuUse, check_fraction, choose_fraction
from tests.helpers.automl_cases import CPU, TINY


def use(milliseconds: float, busy: float | None, gigabytes: float = 0.3, total: float = 85e9) -> GpuUse:
    """Return a use by the time of a step, its busy time [ms] and the memory."""
    return GpuUse(
        memory=gigabytes * 1e9,
        free=total - 1e9,
        total=total,
        step=milliseconds / 1e3,
        busy=None if busy is None else busy / 1e3,
    )


# Steps measured on an H100; busy times of the first two as far as CUDA graphs shorten their steps.
DECODER = use(8.0, 0.6)  # gpt of 2 x 32
IMAGES = use(64 / 4.9, 64 / 14.0, 1.0)  # xresnet18 at 64 px, batch 64
LANGUAGE = use(16 * 1024 / 300, 16 * 1024 / 300, 20.0)  # gpt of 12 x 768
SMALL_CARD = replace(DECODER, total=16e9, free=15e9)


@pytest.mark.parametrize(
    ("measured", "machine", "count", "reason"),
    [
        (DECODER, {"gpus": 1, "cores": 16}, 8, "8 ms, of which the GPU is busy for 0.6 ms"),
        (DECODER, {"gpus": 1, "cores": 16, "cores_per_trial": 4}, 4, "for 16 cores"),
        (DECODER, {"gpus": 4, "cores": 16}, 2, "for 16 cores"),
        (DECODER, {"gpus": 1, "cores": 2}, 1, "for 2 cores"),
        (DECODER, {"gpus": 1, "cores": 16, "trials": 3}, 4, "for 3 trials at once"),
        (DECODER, {"gpus": 4, "cores": 64, "trials": 6}, 2, "for 6 trials at once"),
        (SMALL_CARD, {"gpus": 1, "cores": 64}, 8, ""),
        (replace(SMALL_CARD, memory=1e9), {"gpus": 1, "cores": 64}, 4, "for the GPU's memory"),
        (replace(DECODER, free=0.0), {"gpus": 1, "cores": 64}, 1, "for the GPU's memory"),
        (IMAGES, {"gpus": 1, "cores": 16}, 2, "they would wait for the GPU"),
        (LANGUAGE, {"gpus": 1, "cores": 16}, 1, "they would wait for the GPU"),
        (use(8.0, None), {"gpus": 1, "cores": 16}, 1, "could not be traced"),
        (use(8.0, 0.0), {"gpus": 1, "cores": 16}, 8, ""),
    ],
)
def test_measured_models_share_a_gpu(measured, machine, count, reason):
    chosen = choose_fraction(measured, **machine)
    assert chosen.gpus == 1 / count
    assert reason in str(chosen)
    assert "\n" not in str(chosen)


def test_fractions_hold_their_trials():
    for memory in (0.01, 0.3, 1.0, 3.0, 9.0, 30.0):
        measured = replace(DECODER, memory=memory * 1e9)
        gpus = choose_fraction(measured, gpus=1, cores=64).gpus
        assert 1 / gpus in TRIALS
        if gpus < 1:
            assert (SPARE * measured.memory + CONTEXT) / gpus <= measured.free
            assert check_fraction(gpus, measured).gpus == gpus
    for count in TRIALS[:-1]:
        assert count * memory_fraction(1 / count) == pytest.approx(MEMORY_FRACTION)
    assert [memory_fraction(gpus) for gpus in (0, 1, 2)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("gpus", "measured"),
    [(0.01, replace(DECODER, memory=1e9)), (0.2, LANGUAGE), (0.5, replace(DECODER, free=0.8e9))],
    ids=["100 shares", "large model", "foreign process"],
)
def test_more_shares_than_memory_are_rejected(gpus, measured):
    with pytest.raises(InputError) as error:
        check_fraction(gpus, measured)
    for words in (
        f"--gpus-per-trial {gpus:g} gives",
        f"takes {format_size(measured.memory)}",
        "--gpus-per-trial auto",
    ):
        assert words in str(error.value)


def test_use_is_measured_on_steps(monkeypatch):
    steps = []
    monkeypatch.setattr(gpu_fraction, "free_memory", lambda where: 70.0)
    monkeypatch.setattr(gpu_fraction, "total_memory", lambda where: 80.0)
    monkeypatch.setattr(gpu_fraction, "peak_memory", lambda where: 5.0)
    monkeypatch.setattr(gpu_fraction.Epoch, "step", lambda self: steps.append(1))
    monkeypatch.setattr(gpu_fraction, "TIMED", 0.01)

    def busy(run, where):
        before = len(steps)
        run()
        return (len(steps) - before) * 1e-9

    monkeypatch.setattr(gpu_fraction, "busy_seconds", busy)
    measured = gpu_fraction.measure_gpu_use(TINY, Runtime(device=CPU))
    assert (measured.memory, measured.free, measured.total) == (5, 70, 80)
    assert measured.busy == pytest.approx(1e-9)
    assert measured.step > measured.busy
    monkeypatch.setattr(gpu_fraction, "busy_seconds", lambda run, where: 100.0)
    assert gpu_fraction.measure_gpu_use(TINY, Runtime(device=CPU)).busy <= 0.1, "at most the step itself"


def event(begun, ended, kind=DeviceType.CUDA, name="kernel", annotation=False):
    return SimpleNamespace(
        time_range=SimpleNamespace(start=begun, end=ended),
        device_type=kind,
        name=name,
        is_user_annotation=annotation,
    )


@pytest.mark.parametrize(
    ("events", "microseconds"),
    [
        ([event(0, 10), event(20, 25)], 15),
        ([event(20, 25), event(0, 10), event(5, 12), event(6, 7)], 17),
        ([event(0, 10), event(0, 90, DeviceType.CPU), event(0, 90, annotation=True)], 10),
        ([event(0, 10), event(0, 90, name="Context Sync")], 10),
        ([event(0, 90, DeviceType.CPU)], None),
    ],
)
def test_busy_time_is_that_of_kernels(events, microseconds, monkeypatch):
    calls = []
    gpu = torch.device("cuda", 0)
    trace = SimpleNamespace(events=lambda: events)
    monkeypatch.setattr(device, "supported_activities", lambda: {ProfilerActivity.CUDA})
    monkeypatch.setattr(device, "profile", lambda activities: nullcontext(trace))
    monkeypatch.setattr(device, "synchronise", calls.append)
    busy = device.busy_seconds(lambda: calls.append("run"), gpu)
    assert calls == ["run", gpu]
    assert busy == (None if microseconds is None else pytest.approx(microseconds * 1e-6))


def test_busy_time_is_unknown_without_a_tracer():
    for name in ("cpu", "cuda:0"):  # this build of torch, or this machine, cannot trace CUDA
        if name != "cuda:0" or not torch.cuda.is_available():
            assert device.busy_seconds(lambda: None, torch.device(name)) is None
