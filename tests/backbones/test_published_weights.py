"""Published weights, downloaded by the libraries' own code from a server on this machine."""

import hashlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torchvision import models

from automl.base.errors import InputError
from backbones import build, published_weights


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


@pytest.mark.parametrize(
    ("damage", "why"),
    [(Path.unlink, "404"), (lambda file: file.write_bytes(b"other"), "invalid hash value")],
    ids=["gone", "another file"],
)
def test_failed_downloads_are_reported(
    damage: Any, why: str, squeezenet: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    damage(squeezenet[0])
    with pytest.raises(InputError, match=rf"published for 'torchvision:squeezenet1_1'.*{why}.*name the file"):
        published_weights("torchvision:squeezenet1_1", classes=5)
    assert not list((tmp_path / "cache").rglob("*.pth")), "no partial file is left"


PROGRAM = """
import sys, safetensors.torch, torch
from backbones import published_weights
weights = published_weights("timm:test_resnet", classes=5, size=64)
expected = safetensors.torch.load_file(sys.argv[1])
assert weights.keys() == expected.keys()
assert all(torch.equal(weights[key], expected[key]) for key in expected)
"""


def test_published_weights_of_timm(served: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = served
    file = folder / "timm" / "test_resnet.r160_in1k" / "resolve" / "main" / "model.safetensors"
    file.parent.mkdir(parents=True)
    torch.manual_seed(1)
    safetensors.torch.save_file(build("timm:test_resnet", classes=1000).state_dict(), file)
    run = [sys.executable, "-c", PROGRAM, str(file)]
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": "."}
    process = subprocess.run(
        run, env={**environment, "HF_ENDPOINT": address}, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
