"""Reaching Ray and waiting for room, without a Ray."""

import socket

import pytest
import ray

from attention import InputError
from cluster import TrialResources, connect, wait_for_room


@pytest.fixture
def free(monkeypatch):
    """What is free at each look; the last answer stays."""

    def set_to(*answers):
        looks = list(answers)
        monkeypatch.setattr(ray, "available_resources", lambda: looks.pop(0) if len(looks) > 1 else looks[0])
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8, "GPU": 2})
        return looks

    return set_to


def test_room_that_is_there_is_taken_at_once(free):
    free({"CPU": 2, "GPU": 1})
    wait_for_room(TrialResources(cpus=1, gpus=0.5, workers=2), seconds=0)


def test_room_that_comes_is_waited_for(free):
    looks = free({}, {"CPU": 1}, {"CPU": 4})
    wait_for_room(TrialResources(cpus=4), seconds=60, poll=0.01)
    assert len(looks) == 1


def test_room_that_does_not_come_is_diagnosed(free):
    free({"CPU": 3, "GPU": 0.5})
    with pytest.raises(InputError) as error:
        wait_for_room(TrialResources(cpus=1, gpus=1, workers=2), seconds=0.05, poll=0.01)
    message = str(error.value)
    assert "2 workers of 1 CPUs and 1 GPUs each" in message
    assert "8 CPUs and 2 GPUs, 3 CPUs and 0.5 GPUs are free" in message
    assert "ray status" in message


def test_a_cluster_that_is_not_there_is_told_at_once(monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=f"RAY_ADDRESS={address} cannot be reached"), connect():
            pass
