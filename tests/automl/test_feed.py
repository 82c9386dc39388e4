"""Images on their way to the device come whole, in order, and no thread outlives its use."""

import threading

import pytest
import torch
from automl_cases import CPU, TINY

from automl.data.feed import AHEAD, Feed, prefetched, resident
from automl.tasks.classification import images


@pytest.fixture(scope="module")
def digits():
    return images(TINY.data, "train")


ORDER = torch.randperm(200, generator=torch.Generator().manual_seed(0)).split(32)


def feeders(digits):
    kept = Feed(digits, CPU)
    kept.rows = resident(digits, CPU)
    return {
        "memory map": Feed(digits, CPU),
        "resident": kept,
        "prefetched": lambda order: prefetched(digits, order, CPU),
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
    batches = prefetched(digits, ORDER * 100, CPU)
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before


def test_an_error_of_the_thread_is_raised_where_the_batch_is_awaited(digits):
    wrong = [torch.tensor([0]), torch.tensor([10**6])]
    batches = prefetched(digits, wrong, CPU)
    next(batches)
    with pytest.raises(IndexError):
        next(batches)


def test_only_a_few_batches_wait(digits):
    asked = []

    class Counted:
        def gather(self, index):
            asked.append(len(asked))
            return digits.gather(index)

    batches = prefetched(Counted(), ORDER * 10, CPU)  # type: ignore[arg-type]
    next(batches)
    threading.Event().wait(0.3)
    assert len(asked) <= AHEAD + 2
    batches.close()
