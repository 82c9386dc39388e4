"""Programs that the ONNX exporter cannot translate unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from automl.export.formats import for_onnx

FOLDER = Path(__file__).parents[3] / "automl"
BATCH = torch.export.Dim("N", min=1)


class Attends(nn.Module):
    """Module with scaled dot-product attention over `(N, *extra, 5, 8)` and a mask."""

    def __init__(self, extra: tuple[int, ...], mask: str) -> None:
        super().__init__()
        self.extra, self.mask = extra, mask

    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(1, (*self.extra, -1)) if self.extra else x
        ramp = torch.arange(25.0).view(5, 5)
        mask = {"none": None, "shared": ramp, "each": ramp * x[:, :1, :1].view(-1, *[1] * (q.ndim - 1))}
        return F.scaled_dot_product_attention(q, q.flip(-1), q, mask[self.mask], scale=0.3)


OTHERS = [((), "none"), ((2,), "shared"), ((2, 3), "shared")]


@pytest.mark.parametrize(
    ("extra", "mask"),
    [
        ((2, 3), "each"),
        pytest.param((), "each", marks=pytest.mark.slow("another case")),
        *(pytest.param(*case, marks=pytest.mark.slow("another case")) for case in OTHERS),
    ],
)
def test_attention_of_any_dimensions(extra: tuple[int, ...], mask: str, tmp_path: Path) -> None:
    model = Attends(extra, mask)
    rows = 5 * torch.Size(extra).numel()
    x = torch.randn(2, rows, 8)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: BATCH},))
    torch.onnx.export(for_onnx(program), (), tmp_path / "model.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for batch in (1, 3):
        x = torch.randn(batch, rows, 8)
        (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(output), model(x), rtol=1e-4, atol=1e-4)


PROBE = """
import os, sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

class Probe:
    def find_spec(self, name, *rest):
        if name == "onnxruntime":
            print(os.environ.get("ORT_DISABLE_TELEMETRY"))
            os._exit(0)

sys.meta_path.insert(0, Probe())
if sys.argv[1].startswith("served"):  # as MLflow's server imports it, without this project
    sys.path.insert(0, sys.argv[2])
    pyfunc = SimpleNamespace(PythonModel=object)
    sys.modules["mlflow"] = mlflow = MagicMock(pyfunc=pyfunc)
    for name in ("mlflow.exceptions", "mlflow.protos", "mlflow.protos.databricks_pb2", "tokenizers"):
        sys.modules[name] = MagicMock()
    module = import_module(sys.argv[1])
    if mlflow.models.set_model.called:
        mlflow.models.set_model.call_args[0][0].load_context(None)
    module._open(Path("model.onnx"))
else:
    import_module(f"automl.export.{sys.argv[1]}")
"""


@pytest.mark.parametrize(
    "module", [file.stem for file in FOLDER.rglob("*.py") if "import onnxruntime" in file.read_text()]
)
def test_onnxruntime_records_no_usage(module):
    """Import each module that uses it in a new interpreter, and stop where it would be imported."""
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    probe = [sys.executable, "-c", PROBE, module, str(FOLDER / "export")]
    assert subprocess.run(probe, env=environment, capture_output=True, text=True).stdout == "1\n"
