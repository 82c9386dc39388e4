"""Which shared partial training a trial goes on from, in a search whose placements go into trained models.

A shared partial training is a plain trial, known by its seed. Trials of one shared partial training form a
block: they share its weights, the order of their data and their crops, and differ by what was inserted and
by little else. How much that little is, replicates show: plain trials, too, from a shared partial training
whose weights were changed by a millionth.
"""

from collections import defaultdict
from collections.abc import Mapping

from search.config import TrialConfig
from search.record import Role, State, TrialRecord

PERTURB = 1e-6  # of the weights of a replicate
PLACEMENTS_PER_REPLICATE = 8  # placements for each replicate


class SharedTrainings:
    """Those of a search.

    count: how many there are at first; 0 in a search whose trials all start from new weights.
    records: the trials of the search by their number, kept up to date by who made them.
    """

    def __init__(self, count: int, records: Mapping[int, TrialRecord]) -> None:
        self.count, self._records = count, records

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def begun(self) -> list[TrialRecord]:
        return [record for record in self._records.values() if is_shared_training(record.config)]

    @property
    def ready(self) -> list[TrialRecord]:
        """Those that are trained up to where placements go in."""
        return [
            shared_training
            for shared_training in self.begun
            if shared_training.epoch >= shared_training.config.training.insert_at
        ]

    @property
    def coming(self) -> set[int]:
        """The seeds of those that will be ready."""
        ready = {shared_training.config.seed for shared_training in self.ready}
        running = {
            shared_training.config.seed
            for shared_training in self.begun
            if shared_training.state is State.RUNNING
        }
        return running - ready

    @property
    def lacks_replicate(self) -> bool:
        """Whether a shared partial training that is ready is to go on as a replicate: one for each
        `PLACEMENTS_PER_REPLICATE` placements.
        """
        records = self._records.values()
        placed = sum(bool(record.config.model.placement) for record in records)
        replicates = sum(record.role is Role.REPLICATE for record in records)
        return replicates < min(len(self.ready), placed // PLACEMENTS_PER_REPLICATE)

    def choose(self, config: TrialConfig) -> int | None:
        """The seed of the shared partial training for a trial of `config`, of those that are ready: the one
        with the fewest.

        None where the placement, or the replicate, has been in all of them: it would come to the same again.
        """
        uses: defaultdict[int, int] = defaultdict(int)
        taken = set()
        for record in self._records.values():
            uses[record.config.seed] += 1
            if _inserted(record.config) == _inserted(config):
                taken.add(record.config.seed)
        seeds = [
            shared_training.config.seed
            for shared_training in self.ready
            if shared_training.config.seed not in taken
        ]
        return min(seeds, key=lambda seed: (uses[seed], seed), default=None)


def is_shared_training(config: TrialConfig) -> bool:
    return config.training.insert_at > 0 and _inserted(config) == ({}, 0.0)


def _inserted(config: TrialConfig) -> tuple[object, float]:
    """What distinguishes trials of one shared partial training."""
    return config.model.placement, config.training.perturb
