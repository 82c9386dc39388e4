"""Fixtures of the tests of code search: two small untrained encoders and their export."""

import atexit
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from automl.export import run_export as export
from automl.export.chosen import Chosen
from automl.export.export_result import ExportResult
from automl.storage.storage import Storage
from automl.task.deployment import Deployment, read_usage
from automl.task.evaluator import Evaluator
from automl.task.task_data import Split
from automl.tasks.code_retrieval import Similarity, deploy
from automl.tasks.code_retrieval.data.tokenizer import PADDING, Tokenizer, train_tokenizer
from automl.tasks.code_retrieval.deploy import CODE, QUERY, encoder_deployment
from tests.helpers.automl_cases import Regression

QUERIES = ["read a csv file", "close the socket", "server", "open a port and read"]
FUNCTIONS = [
    "def load(path):\n    return list(csv.reader(open(path)))",
    "def close(self):\n    self.socket.close()",
    "def get_http_server(port):\n    return HTTPServer(port)",
    "def first(rows):\n    return rows[0]",
]
TOKENIZER = train_tokenizer(QUERIES + FUNCTIONS, 90)
LENGTHS = {QUERY: 5, CODE: 12}
CHANNELS = 8
CHOSEN = Chosen(name="name", checkpoint=Storage("checkpoint"), what="the run that was named")


class Encoder(nn.Module):
    """Attention over the real tokens and their mean, with learned positions."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(Tokenizer(TOKENIZER)), CHANNELS)
        self.positions = nn.Parameter(torch.randn(length, CHANNELS))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = (self.embedding(tokens) + self.positions[: tokens.shape[1]])[:, None]
        real = (mask | ~mask.any(1, keepdim=True))[:, None, None]
        x = x + F.scaled_dot_product_attention(x, x, x, attn_mask=real)
        weights = mask[:, :, None].float()
        mean: Tensor = (x[:, 0] * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return mean


class Towers(nn.Module):
    """Encoders of queries and code. `shared`: both are the same encoder."""

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.code = Encoder(LENGTHS[CODE])
        self.query = self.code if shared else Encoder(LENGTHS[QUERY])


class TinySearch(Regression):
    """A task with two graphs. Its training data do not matter here."""

    def __init__(self, *, shared: bool = False, similarity: Similarity = "cosine") -> None:
        super().__init__()
        self.shared, self.similarity = shared, similarity
        self.tokenizer = Tokenizer(TOKENIZER)

    def model(self) -> nn.Module:
        return Towers(shared=self.shared)

    def deployments(self, model: nn.Module) -> dict[str, Deployment]:
        assert isinstance(model, Towers)
        return {
            name: encoder_deployment(encoder, TOKENIZER, LENGTHS[name], self.similarity)
            for name, encoder in ((QUERY, model.query), (CODE, model.code))
        }

    def graph_inputs(self, split: Split, count: int) -> dict[str, dict[str, Tensor]]:
        tokens = {
            name: self.tokenizer.encode(texts, LENGTHS[name])[0]
            for name, texts in ((QUERY, QUERIES), (CODE, FUNCTIONS))
        }
        return {name: {"tokens": torch.from_numpy(value)} for name, value in tokens.items()}

    def evaluate(
        self, model: nn.Module, split: Split, evaluator: Evaluator | None = None
    ) -> dict[str, Tensor]:
        return {"error": torch.tensor(0.25)}

    def usage(self) -> str:
        return read_usage(deploy.__file__).format(
            padding=PADDING,
            query_length=LENGTHS[QUERY],
            code_length=LENGTHS[CODE],
            channels=CHANNELS,
            products=deploy.PRODUCTS[self.similarity],
        )


def export_search(folder: Path, *, shared: bool = False) -> tuple[TinySearch, nn.Module, ExportResult]:
    """Copy an export, which a process creates once, into `folder`."""
    task, model, result = _export(shared)
    shutil.copytree(result.folder, folder, dirs_exist_ok=True)
    return task, model, replace(result, folder=folder)


@cache
def _export(shared: bool) -> tuple[TinySearch, nn.Module, ExportResult]:
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder)
    task = TinySearch(shared=shared)
    model = task.model().eval()
    return task, model, export._write(folder, task, model, CHOSEN, folder, None)
