"""Images are decoded once for a whole cluster, and once a node where they are not shared."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from ray.cluster_utils import Cluster

AUTOML = Path(sys.executable).parent / "automl"
NODES = 3

# Half of the trials have images of another size than the baseline, which is not shared.
SPACE = """
from attention import Spec
from automl.tasks.image_classification import ImageData, ImageTraining
from search.config import Model, TrialConfig


def two_sizes(trial):
    size = 24 if trial.number % 2 else 32
    trial.suggest_float("x", 0, 1)
    return TrialConfig(
        data=ImageData(source="digits", size=size, subset=0.1),
        model=Model(backbone="xresnet18", options={"width": 0.25}),
        training=ImageTraining(epochs=1, batch_size=32),
    )
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A Ray of three nodes, each with a cache of its own, beside a head that runs nothing."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for i in range(NODES):
        cluster.add_node(num_cpus=1, env_vars={"AUTOML_CACHE": str(tmp_path / f"node{i}")})
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


def run_on(cluster: Cluster, folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command on the head, which has a cache of its own, and check that it ends well."""
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "RAY_ADDRESS": cluster.address, "AUTOML_CACHE": str(folder / "head")},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr
    return run


# A search of photographs that only the driver has, in shards of ten.
SHARDED = """
import automl
from automl.data import shared

shared.SHARD_BYTES, shared.LEAST = 10 * 40 * 40 * 3, 1
found = automl.run_search(
    space="folder", data="photos", size=32, backbone="xresnet18", backbone_option=["width=0.25"],
    epochs=1, batch_size=16, trials=4, name="sharded", storage="kept",
)
assert (len(found.trials), found.failure) == (4, None), found.failure
"""


@pytest.mark.slow("a whole search")
def test_nodes_decode_the_pictures_of_the_driver(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SHARDED)
    draw = np.random.default_rng(0)
    for i in range(120):
        file = tmp_path / "photos" / "ab"[i % 2] / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (48, 64, 3), np.uint8)).save(file)
    run = run_on(cluster, tmp_path, sys.executable, "run.py")
    session = Path(cluster.head_node.get_session_dir_path())
    output = "".join(file.read_text() for file in session.glob("logs/worker-*.err"))
    shards = re.findall(
        r"decoded [\d,]+ folder (train|validation) images on the nodes into (\d+) shards", run.stderr
    )
    assert [split for split, _ in shards] == ["train", "validation"]
    stored = {file.name for file in (tmp_path / "kept" / ".data").iterdir()}
    assert len(stored) == sum(int(count) for _, count in shards) + 2, "the shards and the two indexes"
    on_head = {file.name for file in (tmp_path / "head").glob("*.arrow")}
    assert on_head == {name for name in stored if name.endswith(".index.arrow")}, "no pixels"
    fetched = re.findall(r"fetched \S+B into (\S+\.arrow)", output)
    assert len(fetched) == len(set(fetched)), "once a node"
    assert 2 <= len(fetched) <= 2 * NODES
    assert not re.findall(r"decoded .* into \S+node", output), "no node decodes by itself"


@pytest.mark.slow("a whole search")
def test_three_nodes_decode_as_little_as_they_can(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "space.py").write_text(SPACE)
    options = ["--space", "space.py:two_sizes", "--trials", "12", "--name", "once", "--json"]
    run = run_on(cluster, tmp_path, AUTOML, "search", *options)
    result = json.loads(run.stdout)
    assert (result["trials"], result["errors"]) == (12, 0)
    session = Path(cluster.head_node.get_session_dir_path())
    output = run.stderr + "".join(file.read_text() for file in session.glob("logs/worker-*.err"))
    decoded = re.findall(r"decoded [\d,]+ digits (?:train|validation) images into (\S+)", output)
    assert len(decoded) == len(set(decoded)), "no file twice"
    shared = [Path(file) for file in decoded if Path(file).parent.name == "head"]
    assert len(shared) == 2, "both splits of the baseline's size, once in all, by the driver"
    others = [Path(file) for file in decoded if Path(file) not in shared]
    assert len(others) <= 2 * NODES, "the other size, at most once a node"
    assert len({file.name for file in others}) <= 2
    for i in range(NODES):  # whichever have trained have what they needed
        files = {file.name for file in (tmp_path / f"node{i}").glob("*.arrow")}
        assert files <= {file.name for file in (*shared, *others)}
    assert sum((tmp_path / f"node{i}" / shared[0].name).exists() for i in range(NODES)) >= 2
