"""Devices, on a machine that has a CPU alone: CUDA's and Apple's are imitated."""

import subprocess
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from automl_cases import CPU, timeless, tiny
from torch.overrides import TorchFunctionMode

from attention import InputError
from automl.config import device
from automl.config.runtime import Runtime
from automl.tasks import open_task
from automl.tasks.model_check import check_model
from automl.training import clock, step
from automl.training.loop import fit, start
from automl.trials import train

MPS = torch.device("mps")
ROOT = Path(__file__).parents[3]


class OnCpu(TorchFunctionMode):
    """Run operations on MPS on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*map(on_cpu, args), **{key: on_cpu(arg) for key, arg in (kwargs or {}).items()})


def on_cpu(argument):
    return CPU if isinstance(argument, torch.device) and argument == MPS else argument


@pytest.fixture
def mps(monkeypatch):
    """Replace MPS by a fake. Return the calls to it."""
    calls = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            calls.append("record")

        def synchronize(self):
            calls.append("wait")

        def elapsed_time(self, ended):
            return 1500.0

    fake = SimpleNamespace(
        Event=Event,
        empty_cache=lambda: calls.append("empty_cache"),
        recommended_max_memory=lambda: 10**9,
        driver_allocated_memory=lambda: 4 * 10**8,
        set_per_process_memory_fraction=lambda part: calls.append(part),
        synchronize=lambda: calls.append("synchronize"),
        get_rng_state=lambda device="mps": torch.tensor([1, 2, 3], dtype=torch.uint8),
        set_rng_state=lambda state, device="mps": calls.append(state.tolist()),
    )
    for name, value in vars(fake).items():
        monkeypatch.setattr(torch.mps, name, value)
    monkeypatch.setattr(torch.backends.mps, "is_available", cache(lambda: True))  # as torch wraps it
    with OnCpu():
        yield calls


def test_no_other_file_names_a_kind_of_gpu():
    """Neither the product nor a benchmark does; they use `automl.config.device`. One file runs a daemon."""
    tracked = subprocess.run(
        ["git", "grep", "-lwE", "cuda|mps", "--", "*.py", ":!tests"], cwd=ROOT, capture_output=True, text=True
    )
    assert tracked.stdout.split() == ["automl/config/device.py", "cluster/cuda_mps.py"]


def test_auto_does_not_select_mps(mps):
    assert device.find_device() == CPU
    assert device.find_device("mps") == MPS


def test_without_mps_its_name_is_an_error():
    with pytest.raises(InputError, match="device 'mps' cannot be used; try auto, cpu, cuda, cuda:N or mps"):
        device.find_device("mps")


def test_a_trial_with_a_gpu_runs_on_it(mps):
    assert device.device_for(1) == MPS
    assert device.device_for(0) == CPU
    assert device.gpu_names() == [device.device_name(MPS)]


def test_a_gpu_that_cannot_be_used_is_an_error():
    with pytest.raises(RuntimeError, match=r"assigned 0\.5 GPUs"):
        device.device_for(0.5)


def test_memory_of_mps(mps):
    Runtime(device=MPS, memory_fraction=0.5)
    assert mps == [0.5]
    assert device.free_memory(MPS) == 6 * 10**8
    assert mps[1:] == ["empty_cache"]
    assert not device.measures_peak_memory(MPS)
    assert not device.pins_memory(MPS)


def test_out_of_memory_error_of_mps_is_recognised():
    assert device.is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))
    assert device.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not device.is_out_of_memory(RuntimeError("shapes differ"))
    assert not device.is_out_of_memory(ValueError("MPS backend out of memory"))


def test_model_too_large_for_mps_is_not_reported_as_invalid(mps):
    def build():
        raise RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)")

    def forward(count):
        return build()

    with pytest.raises(RuntimeError, match="MPS backend out of memory"):
        check_model("model", lambda: torch.nn.Linear(3, 2), forward, Runtime(device=MPS), images=False)


def test_mps_is_timed_by_events(mps):
    runtime = Runtime(device=MPS)
    assert clock.seconds(lambda: mps.append("run"), runtime) == 1.5
    assert mps == ["record", "run", "record", "wait"]
    device.synchronise(MPS)
    assert mps[-1] == "synchronize"


def test_generators_of_mps_are_kept(mps):
    states = device.generator_states()
    assert states.keys() == {"cpu", "mps"}
    expected = torch.rand(3)
    device.restore_generator_states(states)
    assert torch.equal(torch.rand(3), expected)
    assert mps == [[1, 2, 3]]
    with device.forked_generators(MPS):
        torch.rand(1)
    assert mps == [[1, 2, 3]] * 2


def test_mps_runs_step_by_step_in_one_process(mps):
    runtime = Runtime(device=MPS, compile="graphs")
    assert step.choose_mode(runtime) == "off"
    with pytest.raises(
        InputError, match="--device mps trains in one process; with --workers 2 give auto, cpu"
    ):
        train._open(tiny(), runtime, 2)


def test_training_on_mps_computes_the_same(mps):
    """A training on MPS does not call CUDA."""
    histories = []
    for where in (CPU, MPS):
        task = open_task(tiny(), Runtime(device=where, precision="fp32"))
        histories.append(timeless(fit(task, start(task))))
    assert histories[0] == histories[1]
    assert "empty_cache" in mps, "as it fills the device with images"


def test_calls_to_cuda(monkeypatch):
    calls = []
    gpu = torch.device("cuda", 1)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            calls.append("record")

        def synchronize(self):
            calls.append("wait")

        def elapsed_time(self, ended):
            return 2000.0

    for name, value in {
        "Event": Event,
        "device": lambda where: calls.append(where) or nullcontext(),
        "empty_cache": lambda: calls.append("empty_cache"),
        "mem_get_info": lambda where: (3, 4),
        "reset_peak_memory_stats": lambda where: calls.append("reset"),
        "memory_allocated": lambda where: 5,
        "max_memory_allocated": lambda where: 7,
        "synchronize": lambda where: calls.append("synchronize"),
        "is_initialized": lambda: True,
        "is_available": lambda: True,
        "get_rng_state": lambda: torch.tensor([3], dtype=torch.uint8),
        "set_rng_state": lambda state: calls.append(state.item()),
        "get_device_name": lambda where: f"GPU {where}",
        "device_count": lambda: 2,
        "set_per_process_memory_fraction": lambda part, where: calls.append((part, where)),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    assert device.event_seconds(lambda: calls.append("run"), gpu) == 2
    assert calls == [gpu, "record", "run", "record", "wait"]
    calls.clear()
    assert device.free_memory(gpu) == 3
    assert (device.start_peak_memory(gpu), device.peak_memory(gpu)) == (5, 7)
    device.synchronise(gpu)
    assert calls == ["empty_cache", "reset", "synchronize"]
    calls.clear()
    device.restore_generator_states(device.generator_states())
    assert calls == [3]
    assert device.find_device() == torch.device("cuda")
    assert device.gpu_names() == ["GPU 0", "GPU 1"]
    assert device.device_name(gpu) == "GPU cuda:1"
    calls.clear()
    Runtime(device=gpu, memory_fraction=0.25)
    assert calls == [(0.25, gpu)]
