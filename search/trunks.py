"""Which trunk a trial goes on from, in a search whose placements go into trained models.

A trunk is a plain trial, known by its seed. Trials of one trunk form a block: they share its weights, the
order of their data and their crops, and differ by what was inserted and by little else. How much that little
is, placebos show: plain trials, too, from a trunk whose weights were changed by a millionth.
"""

from collections import defaultdict
from collections.abc import Mapping

from search.config import TrialConfig
from search.record import Role, State, TrialRecord

PERTURB = 1e-6  # of the weights of a placebo
PLACEBOS = 8  # placements for each placebo


class Trunks:
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
        return [record for record in self._records.values() if is_trunk(record.config)]

    @property
    def ready(self) -> list[TrialRecord]:
        """Those that are trained up to where placements go in."""
        return [trunk for trunk in self.begun if trunk.epoch >= trunk.config.training.graft_at]

    @property
    def coming(self) -> set[int]:
        """The seeds of those that will be ready."""
        ready = {trunk.config.seed for trunk in self.ready}
        running = {trunk.config.seed for trunk in self.begun if trunk.state is State.RUNNING}
        return running - ready

    @property
    def lacks_placebo(self) -> bool:
        """Whether a trunk that is ready is to go on as a placebo: one for each `PLACEBOS` placements."""
        records = self._records.values()
        placed = sum(bool(record.config.model.placement) for record in records)
        placebos = sum(record.role is Role.PLACEBO for record in records)
        return placebos < min(len(self.ready), placed // PLACEBOS)

    def choose(self, config: TrialConfig) -> int | None:
        """The seed of the trunk for a trial of `config`, of those that are ready: the one with the fewest.

        None where the placement, or the placebo, has been in all of them: it would come to the same again.
        """
        uses: defaultdict[int, int] = defaultdict(int)
        taken = set()
        for record in self._records.values():
            uses[record.config.seed] += 1
            if _inserted(record.config) == _inserted(config):
                taken.add(record.config.seed)
        seeds = [trunk.config.seed for trunk in self.ready if trunk.config.seed not in taken]
        return min(seeds, key=lambda seed: (uses[seed], seed), default=None)


def is_trunk(config: TrialConfig) -> bool:
    return config.training.graft_at > 0 and _inserted(config) == ({}, 0.0)


def _inserted(config: TrialConfig) -> tuple[object, float]:
    """What distinguishes trials of one trunk."""
    return config.model.placement, config.training.perturb
