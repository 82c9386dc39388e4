"""Limits on what a model may cost: known before it is trained, and passed to the sampler as constraints."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from automl.config.units import format_count


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that a trial may have of each, None for no limit.

    params, macs: of the model, macs for one input. memory: bytes of a training step. latency: ms for
        one input.
    """

    params: float | None = None
    macs: float | None = None
    memory: float | None = None
    latency: float | None = None

    @property
    def nothing(self) -> bool:
        """There is no limit."""
        return self == Limits()

    def violations(self, profile: Mapping[str, float]) -> dict[str, float]:
        """For each limit the part by which it is exceeded; 0 or less where it is kept."""
        return {name: profile[name] / limit - 1 for name, limit in asdict(self).items() if limit is not None}

    def excess(self, profile: Mapping[str, float]) -> str | None:
        """What exceeds its limit, as a sentence; None if nothing does."""
        broken = [
            f"{name} {format_count(profile[name])} exceeds the limit of {format_count(getattr(self, name))}"
            for name, part in self.violations(profile).items()
            if part > 0
        ]
        return "; ".join(broken) or None
