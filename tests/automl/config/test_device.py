"""Devices, on a machine that has a CPU alone: CUDA's are imitated."""

import inspect
import subprocess
import warnings
from pathlib import Path

import pytest
import torch

from automl.base.errors import InputError
from automl.config import device
from automl.config.runtime import Runtime
from automl.task.checks import check_model
from tests.helpers.automl_cases import CPU
from tests.helpers.imitated_gpus import SIZE

ROOT = Path(__file__).parents[3]


def test_no_other_file_names_a_kind_of_gpu():
    """Neither the product nor a benchmark does; they use `automl.config.device`."""
    tracked = subprocess.run(
        ["git", "grep", "-lw", "cuda", "--", "*.py", ":!tests"], cwd=ROOT, capture_output=True, text=True
    )
    assert tracked.stdout.split() == ["automl/config/device.py"]


def test_missing_devices_are_named(monkeypatch):
    for name in ("mps", "meta"):
        message = f"device '{name}' cannot be used; try auto, cpu, cuda or cuda:N"
        with pytest.raises(InputError, match=message):
            device.find_device(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match=r"device 'cuda' cannot be used; .*; CUDA_VISIBLE_DEVICES is ''\)"):
        device.find_device("cuda")


OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"


@pytest.fixture
def old_driver(monkeypatch):
    def warn():
        warnings.warn(f"CUDA initialization: {OLD}\nby downloading", stacklevel=1)
        return False

    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "_cudart", object())
    monkeypatch.setattr(torch.cuda, "is_available", warn)


def test_an_old_driver_is_named(old_driver, capsys):
    assert device.find_device() == CPU
    assert capsys.readouterr().err == f"warning: using cpu. CUDA initialization: {OLD}\n"


def test_errors_of_little_memory():
    assert device.is_out_of_memory(RuntimeError("CUDA error: out of memory, as another process holds it"))
    assert device.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not device.is_out_of_memory(RuntimeError("shapes differ"))
    assert not device.is_out_of_memory(ValueError("CUDA error: out of memory"))

    def forward(count):
        raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError, match="CUDA error: out of memory"):
        check_model("model", lambda: torch.nn.Linear(3, 2), forward, Runtime(device=CPU), images=False)


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


def test_figures_of_cuda_and_the_device_of_a_runtime(gpus):
    gpu = device.find_device("cuda:1")
    gpus.used = [0, SIZE // 4]
    assert device.event_seconds(lambda: None, gpu) == 2
    assert device.free_memory(gpu) == SIZE * 3 // 4
    assert (device.start_peak_memory(gpu), device.peak_memory(gpu)) == (5, 7)
    assert gpus.calls == [("record", 1), ("record", 1), ("wait",), ("empty",), ("reset", 1)]
    assert gpus.current == 0
    assert device.gpu_names() == ["GPU 0", "GPU 1"]
    assert device.device_name(gpu) == "GPU 1"
    # Otherwise a checkpoint would keep the generator of another card, and `.cuda()` would use that.
    gpu = device.find_device("cuda:1")
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
