"""Code of the user on its way to the processes of trials."""

import pickle

import pytest
import ray

from automl.base import live_objects, loading
from automl.trials import trial

NAME = "__main__:train"
ARRAY = 40_000_000  # bytes of a notebook's array


def test_large_code_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store: dict[ray.ObjectRef, bytes] = {}
    reads: list[ray.ObjectRef] = []

    def put(content: bytes) -> ray.ObjectRef:
        reference = ray.ObjectRef(bytes([len(store)]) * 28)
        store[reference] = content
        return reference

    def get(references: list[ray.ObjectRef]) -> list[bytes]:
        reads.extend(references)
        return [store[each] for each in references]

    monkeypatch.setattr(ray, "put", put)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(trial, "_fetched", {})
    monkeypatch.setattr(live_objects, "_received", {})
    packed = pickle.dumps(("hash", bytes(ARRAY)))
    send = trial.make_sender()
    for _ in range(3):
        sent = send({NAME: packed, "small.py": b"x = 1"})
        assert sent["small.py"] == b"x = 1"
        trial.receive_code({NAME: sent[NAME]})
        assert loading.hash_code(NAME) == "hash"
    assert list(store.values()) == [packed]
    assert len(reads) == 1
    assert not capsys.readouterr().err
    monkeypatch.setattr(trial, "LARGE", ARRAY)
    trial.make_sender()({NAME: packed})
    assert "load large data inside the function" in capsys.readouterr().err
