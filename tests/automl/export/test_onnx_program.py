"""Programs that the ONNX exporter cannot translate unchanged."""

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


def test_onnxruntime_records_no_usage() -> None:
    """Files of a served model turn its records off before they import it, as the package does."""
    off = 'os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")'
    assert off in (FOLDER / "__init__.py").read_text()
    for file in FOLDER.glob("export/served_*.py"):
        before, imported, _ = file.read_text().partition("import onnxruntime")
        assert not imported or off in before, file
