"""Devices, on a machine that has a CPU alone: CUDA's and Apple's are imitated."""

import inspect
import subprocess
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from automl.base.errors import InputError
from automl.config import device
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.task.checks import check_model
from automl.training import clock, step
from automl.training.loop import fit, start
from automl.trials import train
from tests.helpers.automl_cases import CPU, timeless, tiny
from tests.helpers.imitated_gpus import SIZE, OnCpu

MPS = torch.device("mps")
ROOT = Path(__file__).parents[3]


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
    """Neither the product nor a benchmark does; they use `automl.config.device`."""
    tracked = subprocess.run(
        ["git", "grep", "-lwE", "cuda|mps", "--", "*.py", ":!tests"], cwd=ROOT, capture_output=True, text=True
    )
    assert tracked.stdout.split() == ["automl/config/device.py"]


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


OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"


@pytest.fixture
def old_driver(monkeypatch):
    def refuse():
        raise RuntimeError(f"{OLD}\nby downloading a new version")

    def warn():
        warnings.warn(f"CUDA initialization: {OLD}\nby downloading", stacklevel=1)
        return False

    monkeypatch.setattr(torch._C, "_cuda_init", refuse, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "_cudart", object())
    monkeypatch.setattr(torch.cuda, "is_available", warn)


def test_an_old_driver_is_named(old_driver, capsys):
    assert device.find_device() == CPU
    assert capsys.readouterr().err == f"warning: using cpu. CUDA initialization: {OLD}\n"
    for call, kind in ((device.find_device, InputError), (device.device_for, device.UnusableGpu)):
        with pytest.raises(kind) as error:
            call("cuda" if kind is InputError else 0.5)
        assert f"({OLD}" in str(error.value)
    assert str(error.value).startswith("Ray assigned 0.5 GPUs to the trial, but torch ")


def test_hidden_gpus_are_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match=r"device 'cuda' cannot be used; .*; CUDA_VISIBLE_DEVICES is ''\)"):
        device.find_device("cuda")


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


GRAPHS = ("capture",)  # It needs a real GPU.
# Every other function of `automl.config.device` that takes a device.
OF_DEVICE = {
    name: list(signature.parameters)
    for name, function in vars(device).items()
    if inspect.isfunction(function) and function.__module__ == device.__name__ and name not in GRAPHS
    for signature in [inspect.signature(function)]
    if any(parameter.annotation is torch.device for parameter in signature.parameters.values())
}
OTHERS = {"memory_fraction": 0.5, "dtype": torch.bfloat16, "run": lambda: None, "tensor": torch.zeros(1)}
# How the program gets the device of a GPU.
SOURCES = {
    "auto": device.find_device,
    "cuda": lambda: device.find_device("cuda"),
    "of a trial": lambda: device.device_for(0.5),
    "of a caller": lambda: Runtime(device=torch.device("cuda")).device,
}


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("source", SOURCES)
def test_a_gpu_always_has_its_index(source, current, gpus):
    """With it, torch accepts the device in every call."""
    gpus.current = current
    gpu = SOURCES[source]()
    assert len(OF_DEVICE) > 10
    for name, parameters in OF_DEVICE.items():
        result = getattr(device, name)(*(OTHERS.get(parameter, gpu) for parameter in parameters))
        if hasattr(result, "__enter__"):
            with result:
                pass
    assert gpu == torch.device("cuda", current)
    named = [call for call in gpus.calls if len(call) > 1]
    assert {call[-1] for call in named} == {current}
    assert {call[0] for call in named} >= {"fraction", "record", "reset", "synchronize"}


def test_the_device_of_a_runtime_is_the_current_one(gpus):
    """Otherwise a checkpoint would keep the generator of another card, and `.cuda()` would use that."""
    gpu = device.find_device(device.gpu_with_number(1))
    Runtime(device=gpu)
    assert gpus.current == 1
    gpus.generators[1].manual_seed(5)
    states = device.generator_states()
    assert torch.equal(states["cuda"], gpus.generators[1].get_state())
    gpus.generators[1].manual_seed(6)
    with device.forked_generators(gpu):
        gpus.generators[1].manual_seed(7)
    assert gpus.generators[1].initial_seed() == 6
    device.restore_generator_states(states)
    assert gpus.generators[1].initial_seed() == 5


def test_figures_of_cuda(gpus):
    gpu = device.find_device("cuda:1")
    gpus.used = [0, SIZE // 4]
    assert device.event_seconds(lambda: None, gpu) == 2
    assert device.free_memory(gpu) == SIZE * 3 // 4
    assert (device.start_peak_memory(gpu), device.peak_memory(gpu)) == (5, 7)
    assert gpus.calls == [("record", 1), ("record", 1), ("wait",), ("empty",), ("reset", 1)]
    assert gpus.current == 0
    assert device.gpu_names() == ["GPU 0", "GPU 1"]
    assert device.device_name(gpu) == "GPU 1"
