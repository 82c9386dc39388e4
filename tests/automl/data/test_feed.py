"""Test feeds: batches are complete and in order, and threads end."""

import gc
import threading
import weakref

import pytest
import torch

from automl.config.device import find_device
from automl.tasks.image_classification.data.feed import AHEAD, Feed, copy_to_device, prefetch
from automl.tasks.image_classification.task import load_images, open_feed
from tests.helpers import others_slow
from tests.helpers.automl_cases import CPU, TINY, opened
from tests.helpers.imitated_gpus import SIZE


@pytest.fixture(scope="module")
def digits():
    return load_images(TINY.data, "train")


ORDER = torch.randperm(200, generator=torch.Generator().manual_seed(0)).split(32)


def feeders(digits):
    resident_feed = Feed(digits, CPU)
    resident_feed.rows = copy_to_device(digits, CPU)
    return {
        "memory map": Feed(digits, CPU),
        "resident": resident_feed,
        "prefetched": lambda order: prefetch(digits, order, CPU),
    }


@pytest.mark.parametrize("kind", ["memory map", "resident", "prefetched"])
def test_every_kind_of_feed_yields_the_requested_rows(digits, kind):
    batches = list(feeders(digits)[kind](ORDER))
    assert [len(batch) for batch in batches] == [len(index) for index in ORDER]
    for batch, index in zip(batches, ORDER, strict=True):
        assert batch.dtype is torch.uint8
        assert torch.equal(batch, digits.gather(index))


def test_threads_of_feeds_end_and_raise(digits):
    before = set(threading.enumerate())  # of which others may end meanwhile
    batches = prefetch(digits, ORDER * 100, CPU)
    next(batches)
    (thread,) = set(threading.enumerate()) - before
    batches.close()
    assert not thread.is_alive()
    wrong = [torch.tensor([0]), torch.tensor([10**6])]
    batches = prefetch(digits, wrong, CPU)
    next(batches)
    with pytest.raises(IndexError):
        next(batches)
    asked = []

    class RecordingImages:
        def gather(self, index):
            asked.append(len(asked))
            return digits.gather(index)

    batches = prefetch(RecordingImages(), ORDER * 10, CPU)  # type: ignore[arg-type]
    next(batches)
    threading.Event().wait(0.3)
    assert len(asked) <= AHEAD + 2
    batches.close()


def test_process_has_one_feed_per_split():
    data = opened().config.data
    train, validation = (open_feed(data, split, CPU, 1.0) for split in ("train", "validation"))
    list(opened(seed=1).batches(0))  # another trial with the same data
    assert open_feed(data, "train", CPU, 1.0) is train
    assert open_feed(data, "validation", CPU, 1.0) is validation


@pytest.mark.parametrize("change", others_slow([{"size": 32}, {"subset": 0.1}], {"size": 32}))
def test_feeds_of_other_images_are_freed_at_the_start_of_a_trial(change):
    task = opened()
    list(task.batches(0))
    old = [
        weakref.ref(open_feed(task.config.data, split, CPU, 1.0)) for split in ("train", "validation", "test")
    ]
    del task
    opened(data=change)
    gc.collect()
    assert [feed() for feed in old] == [None, None, None]


def test_memory_cached_by_torch_counts_as_free(digits, gpus, monkeypatch):
    gpus.used = [SIZE] * 2
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: gpus.used.__setitem__(0, 0))
    assert Feed(digits, find_device("cuda")).rows is not None
