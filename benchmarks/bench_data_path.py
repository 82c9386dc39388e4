"""Measure where pictures are decoded and kept for a search on three hosts: bytes, seconds and places.

`before`: the driver decodes all, sends the file to the storage, and each host fetches it. `after`: tasks on
the hosts decode shards, from encoded pictures that the driver sends, and each host joins them. The hosts are
three nodes of one Ray on this machine, with a core and a cache each, and the storage is a folder. So no
network is measured, and all nodes start their processes on the same cores. Bytes, and times without that
start, are also given for 100,000 pictures, scaled by their number.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import write_values
from pictures import make_pictures
from ray.cluster_utils import Cluster

from automl.data import shared
from automl.storage.storage import Storage
from automl.tasks.image_classification.data import (
    cache_side,
    dataset,
    open_image_records,
    open_split,
    shared_name,
)

SIZE, HOSTS, SCALED = 256, 3, 100_000
SPLITS = ("train", "validation")
MEASURED = 4  # shards that are written here, for the processor time of a picture


def open_splits(folder: Path) -> dict[str, Path]:
    return {split: open_split("folder", split, path=folder, size=SIZE).file.path for split in SPLITS}


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.arrow"))


@contextmanager
def timed(result: dict[str, Any], name: str, cache: Path) -> Iterator[None]:
    """Add the seconds of the block, which uses this cache, to the result."""
    os.environ["AUTOML_CACHE"] = str(cache)
    wall, processor = time.perf_counter(), time.process_time()
    yield
    result[f"{name}, s"] = time.perf_counter() - wall
    result[f"{name}, processor s of the driver"] = time.process_time() - processor


def decode_and_fetch(folder: Path, scratch: Path, name: str) -> dict[str, Any]:
    """Decode on the driver or on the nodes, and fetch on each host. Return seconds and bytes."""
    result: dict[str, Any] = {}
    storage, head = Storage(str(scratch / name / "storage")), scratch / name / "head"
    shared.use_saved(None, storage)
    with timed(result, "decoding", head):
        files = open_splits(folder)
    with timed(result, "sending", head):
        sent = shared.publish(storage, shared_name("folder", folder, SIZE), files, None)
    for host in range(HOSTS):
        shared.use(sent)
        cache = scratch / name / f"host{host}"
        with timed(result, f"fetching on host {host}", cache):
            open_splits(folder)
        result[f"bytes on host {host}"] = size_of(cache)
    result["bytes on the driver's disk"] = size_of(head)
    result["bytes in the storage"] = size_of(scratch / name / "storage")
    shared.use(None)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=3000)
    options = parser.parse_args()
    shared.LEAST = 1  # fewer pictures than a search has to have
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = make_pictures(scratch / "pictures", train=options.pictures, test=40, side=SIZE)
        encoded = sum(file.stat().st_size for file in (folder / "train").rglob("*.jpg"))
        os.environ["AUTOML_CACHE"] = str(scratch / "hashes")
        begin = time.process_time()
        records = open_image_records("folder", path=folder, size=SIZE)  # hashes the files
        hashing = time.process_time() - begin
        before = decode_and_fetch(folder, scratch, "before")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for host in range(HOSTS):
            caches = {"AUTOML_CACHE": str(scratch / "after" / f"node{host}")}
            cluster.add_node(num_cpus=1, env_vars=caches)
        cluster.wait_for_nodes()
        os.environ["RAY_ADDRESS"] = cluster.address
        try:
            after = decode_and_fetch(folder, scratch, "after")
        finally:
            del os.environ["RAY_ADDRESS"]
            cluster.shutdown()
        # The processor time of a task without the start of its process.
        row = cache_side(SIZE) ** 2 * 3
        rows = shared.SHARD_BYTES // row
        items = records.inputs("train")[: MEASURED * rows]
        os.environ["AUTOML_CACHE"] = str(scratch / "tasks")
        begin = time.process_time()
        dataset.open_image_cache(items, records.file.classes, cache_side(SIZE), "measured")
        task = (time.process_time() - begin) / len(items)
    pictures = sum(len(records.rows(split)) for split in SPLITS)
    factor = SCALED / pictures
    decoded = before["bytes on host 0"]
    write_values(
        "data-path",
        {
            "pictures": pictures,
            "hosts": HOSTS,
            "before": before,
            "after": after,
            "hashing, processor s": hashing,
            "decoding a picture, processor ms": 1000 * task,
            "for 100,000 pictures": {
                "encoded, GB": encoded / pictures * SCALED / 1e9,
                "decoded, GB": decoded * factor / 1e9,
                "decoding, processor minutes": task * SCALED / 60,
                "before": {
                    "decoded by the driver, processor minutes": task * SCALED / 60,
                    "sent by the driver, GB": decoded * factor / 1e9,
                    "sending by the driver, minutes": before["sending, s"] * factor / 60,
                    "on the driver's disk, GB": before["bytes on the driver's disk"] * factor / 1e9,
                    "on the disk of each host, GB": decoded * factor / 1e9,
                    "fetching on a host, minutes": before["fetching on host 0, s"] * factor / 60,
                },
                "after": {
                    "decoded by the driver, processor minutes": 0.0,
                    "driver's processor minutes": after["decoding, processor s of the driver"] * factor / 60,
                    "decoded by each host, processor minutes": task * SCALED / 60 / HOSTS,
                    "sent by the driver, GB": encoded / pictures * SCALED / 1e9,
                    "sent by each host, GB": decoded * factor / HOSTS / 1e9,
                    "on the driver's disk, GB": after["bytes on the driver's disk"] * factor / 1e9,
                    "on the disk of each host, GB": after["bytes on host 0"] * factor / 1e9,
                    "fetching on a host, minutes": after["fetching on host 0, s"] * factor / 60,
                },
            },
        },
    )


if __name__ == "__main__":
    main()
