"""Makes a local Ray listen on loopback only."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.ray_internals import without_outer_address

LOOPBACK = "127.0.0.1"


@contextmanager
def bind_to_loopback() -> Iterator[None]:
    """Make a Ray that is started inside the block use 127.0.0.1 as its address and listen only there.

    The workers of a trial exchange gradients by Gloo or NCCL, which take the name of the network interface.
    """
    interface = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    with without_outer_address():
        yield
