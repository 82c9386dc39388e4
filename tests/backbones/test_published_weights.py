"""Published weights, downloaded by the libraries' own code from a server on this machine."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import models

from backbones import published_weights


class FileHandler(http.server.SimpleHTTPRequestHandler):
    """Handler that serves files with the headers that Hugging Face's client requires."""

    def __init__(self, *arguments: Any, folder: Path) -> None:
        super().__init__(*arguments, directory=str(folder))

    def end_headers(self) -> None:
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(self.path.encode()).hexdigest()}"')
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the address of a server, and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    address = ("127.0.0.1", 0)
    with http.server.ThreadingHTTPServer(address, lambda *a: FileHandler(*a, folder=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


@pytest.fixture
def squeezenet(
    served: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """Yield the file that torchvision downloads for squeezenet1_1, and its weights."""
    address, folder = served
    torch.manual_seed(1)
    state = models.squeezenet1_1().state_dict()
    torch.save(state, folder / "new")
    digest = hashlib.sha256((folder / "new").read_bytes()).hexdigest()
    file = (folder / "new").rename(folder / f"squeezenet-{digest[:8]}.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    weights_entry = models.get_model_weights("squeezenet1_1").DEFAULT.value
    before = weights_entry.url
    object.__setattr__(weights_entry, "url", f"{address}/{file.name}")  # It is frozen.
    yield file, state
    object.__setattr__(weights_entry, "url", before)


def test_published_weights_of_torchvision(squeezenet: tuple[Path, dict[str, Tensor]]) -> None:
    _, expected = squeezenet
    weights = published_weights("torchvision:squeezenet1_1", classes=5)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)
