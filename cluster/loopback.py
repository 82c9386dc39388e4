"""Makes a local Ray listen on loopback only."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.ray_internals import without_outer_address

LOOPBACK = "127.0.0.1"


@contextmanager
def on_loopback() -> Iterator[None]:
    """A Ray that is started inside the block takes 127.0.0.1 for its address and listens there alone.

    Gloo and NCCL, by which the workers of a trial exchange gradients, go by
    the name of the network interface.
    """
    interface = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    with without_outer_address():
        yield
