"""Images on their way to the device come whole, in order, and no thread outlives its use."""

import gc
import threading
import weakref

import pytest
import torch
from automl_cases import CPU, TINY, opened

from automl.data.images.feed import AHEAD, Feed, copy_to_device, prefetch
from automl.tasks.image_classification import load_images, open_feed


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


@pytest.mark.parametrize("way", ["memory map", "resident", "prefetched"])
def test_every_way_gives_the_rows_that_are_asked_for(digits, way):
    batches = list(feeders(digits)[way](ORDER))
    assert [len(batch) for batch in batches] == [len(index) for index in ORDER]
    for batch, index in zip(batches, ORDER, strict=True):
        assert batch.dtype is torch.uint8
        assert torch.equal(batch, digits.gather(index))


def test_a_consumer_that_stops_early_ends_the_thread(digits):
    before = threading.active_count()
    batches = prefetch(digits, ORDER * 100, CPU)
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before


def test_an_error_of_the_thread_is_raised_where_the_batch_is_awaited(digits):
    wrong = [torch.tensor([0]), torch.tensor([10**6])]
    batches = prefetch(digits, wrong, CPU)
    next(batches)
    with pytest.raises(IndexError):
        next(batches)


def test_only_a_few_batches_wait(digits):
    asked = []

    class Counted:
        def gather(self, index):
            asked.append(len(asked))
            return digits.gather(index)

    batches = prefetch(Counted(), ORDER * 10, CPU)  # type: ignore[arg-type]
    next(batches)
    threading.Event().wait(0.3)
    assert len(asked) <= AHEAD + 2
    batches.close()


def test_a_process_has_one_feed_of_a_split():
    data = opened().config.data
    train, validation = (open_feed(data, split, CPU, 1.0) for split in ("train", "validation"))
    list(opened(seed=1).batches(0))  # another trial with the same data
    assert open_feed(data, "train", CPU, 1.0) is train
    assert open_feed(data, "validation", CPU, 1.0) is validation


@pytest.mark.parametrize("change", [{"size": 32}, {"subset": 0.1}])
def test_feeds_of_other_images_are_freed_when_a_trial_begins(change):
    task = opened()
    list(task.batches(0))
    old = [
        weakref.ref(open_feed(task.config.data, split, CPU, 1.0)) for split in ("train", "validation", "test")
    ]
    del task
    opened(data=change)
    gc.collect()
    assert [feed() for feed in old] == [None, None, None]


def test_what_torch_keeps_of_freed_images_is_free(digits, monkeypatch):
    taken = [10**9]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9 - sum(taken), 10**9))
    monkeypatch.setattr(torch.cuda, "empty_cache", taken.clear)
    monkeypatch.setattr("automl.data.images.feed.copy_to_device", lambda images, device: torch.zeros(1))
    assert Feed(digits, torch.device("cuda")).rows is not None
