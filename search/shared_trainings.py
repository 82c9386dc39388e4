"""Choice of the shared partial training that a trial continues.

A shared partial training is a plain trial, identified by its seed. Trials that continue it form a block: they
share its weights, the order of the data and the crops, and differ by the inserted placement and little else.
Baseline replicates measure this remainder: they are plain trials that continue it with weights changed by a
millionth.
"""

from collections import defaultdict
from collections.abc import Mapping

from search.config import TrialConfig
from search.record import Role, State, TrialRecord

PERTURB = 1e-6  # relative noise on the weights of a replicate
PLACEMENTS_PER_REPLICATE = 8


class SharedTrainings:
    """The shared partial trainings of a search.

    Attributes:
        count: The number at the start; 0 if all trials start from new weights.
    """

    def __init__(self, count: int, records: Mapping[int, TrialRecord]) -> None:
        self.count, self._records = count, records

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def begun(self) -> list[TrialRecord]:
        return [record for record in self._records.values() if is_shared_training(record.config)]

    @property
    def all_begun(self) -> bool:
        return len(self.begun) >= self.count

    @property
    def ready(self) -> list[TrialRecord]:
        """Return those that are trained up to the epoch at which placements are inserted."""
        return [record for record in self.begun if record.epoch >= record.config.training.insert_at]

    @property
    def coming(self) -> set[int]:
        """Return the seeds of those that are still training."""
        running = {record.config.seed for record in self.begun if record.state is State.RUNNING}
        return running - {record.config.seed for record in self.ready}

    @property
    def lacks_replicate(self) -> bool:
        """Return True if a replicate is due: one for each `PLACEMENTS_PER_REPLICATE` placements."""
        records = self._records.values()
        placed = sum(bool(record.config.model.placement) for record in records)
        replicates = sum(record.role is Role.REPLICATE for record in records)
        return replicates < min(len(self.ready), placed // PLACEMENTS_PER_REPLICATE)

    def choose(self, config: TrialConfig) -> int | None:
        """Return the seed of the ready shared partial training with the fewest trials.

        Those that already have this placement, or a replicate, are left out, since the result would be the
        same. None if none is left.
        """
        uses: defaultdict[int, int] = defaultdict(int)
        used = set()
        for record in self._records.values():
            uses[record.config.seed] += 1
            if _inserted(record.config) == _inserted(config):
                used.add(record.config.seed)
        seeds = [record.config.seed for record in self.ready if record.config.seed not in used]
        return min(seeds, key=lambda seed: (uses[seed], seed), default=None)


def is_shared_training(config: TrialConfig) -> bool:
    return config.training.insert_at > 0 and _inserted(config) == ({}, 0.0, 1.0)


def _inserted(config: TrialConfig) -> tuple[object, float, float]:
    """Return the settings that distinguish trials of one shared partial training."""
    return config.model.placement, config.training.perturb, config.longer
