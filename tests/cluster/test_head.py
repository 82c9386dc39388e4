"""Detection of the end of Ray's head, without a Ray."""

import socket
import threading
from types import SimpleNamespace

import pytest
import ray

from cluster.connect import watch_head


@pytest.mark.parametrize("ends", [True, False])
def test_end_of_the_head_is_reported_once(ends, monkeypatch):
    calls = []
    was_called = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=address))

        def lost(lost_address):
            calls.append(lost_address)
            was_called.set()

        with watch_head(lost, period=0.01):
            if ends:
                server.close()
            assert was_called.wait(10 if ends else 0.1) is ends
    assert calls == [address] * ends
