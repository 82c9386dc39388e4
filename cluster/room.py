"""The room for trials in a cluster whose nodes come and go."""

import sys
import time
from collections.abc import Callable, Mapping

from cluster.connect import nodes
from cluster.resources import TrialResources, fitting, shortage

FRESH = 1.0  # seconds for which what was seen of the cluster is taken for true
GRACE = 30.0  # seconds without any room after which no node is expected to come back
REMIND = 60.0  # seconds between two lines about what is waited for


class Room:
    """How many trials there is room for, asked as often as one likes.

    shape: of a trial. most: how many are asked for at once though there is no room for them yet, which makes
    an autoscaler start nodes; None for as many as there is room for.
    """

    def __init__(
        self,
        shape: TrialResources,
        most: int | None = None,
        *,
        look: Callable[[], Mapping[str, Mapping[str, float]]] = nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shape, self.most = shape, most
        self._look, self._clock = look, clock
        self._looked = self._told = float("-inf")
        self._nodes: Mapping[str, Mapping[str, float]] = {}
        self._fitting = 0
        self._since: float | None = None  # when there began to be no room
        self._ended: str | None = None

    def slots(self) -> int:
        """How many trials may run at once."""
        self._refresh()
        return self._fitting if self.most is None else self.most

    def ended(self) -> str | None:
        """Why no more room is to be expected: for a while there has been none for a single trial."""
        self._refresh()
        return self._ended

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._looked < FRESH:
            return
        self._looked = now
        self._nodes = self._look()
        self._fitting = fitting(self.shape, self._nodes.values())
        if self._fitting:
            self._since = None
            return
        self._since = now if self._since is None else self._since
        if self.most is None:
            if now - self._since >= GRACE and self._ended is None:
                self._ended = f"{self._shortage()}, and no other node came in {GRACE:g} s"
        elif now - self._told >= REMIND:
            self._told = now
            print(f"waiting for a node: {self._shortage()}", file=sys.stderr, flush=True)

    def _shortage(self) -> str:
        return shortage(self.shape, self._nodes.values())
