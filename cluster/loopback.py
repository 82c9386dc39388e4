"""Makes a local Ray listen on loopback only."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ray._private import ray_constants

LOOPBACK = "127.0.0.1"


@contextmanager
def on_loopback() -> Iterator[None]:
    """A Ray that is started inside the block takes 127.0.0.1 for its address and listens there alone.

    Ray has no option for it: it puts an outer address in the place of 127.0.0.1, save where it does not
    support clusters, as on macOS. Gloo and NCCL, by which the workers of a trial exchange gradients, go by
    the name of the network interface.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    interface = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
