"""Limits on the costs of a model. They are checked before training and passed to the sampler."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from automl.base.units import format_count


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Maximum costs of a trial. None means no limit.

    Attributes:
        params: Parameters of the model.
        macs: Multiply-accumulates for one input.
        memory: Memory of a training step [bytes].
        latency: Latency of one input [ms]. For a language model, of one decoded token.
        cache: Keys, values and states that a language model keeps while decoding [bytes].
    """

    params: float | None = None
    macs: float | None = None
    memory: float | None = None
    latency: float | None = None
    cache: float | None = None

    @property
    def nothing(self) -> bool:
        """True if no limit is set."""
        return self == Limits()

    def violations(self, profile: Mapping[str, float]) -> dict[str, float]:
        """Return the fraction by which each limit is exceeded. 0 or less means that it is met."""
        return {name: profile[name] / limit - 1 for name, limit in asdict(self).items() if limit is not None}

    def excess(self, profile: Mapping[str, float]) -> str | None:
        """Return a sentence that names the exceeded limits, or None."""
        violations = [
            f"{name} {format_count(profile[name])} exceeds the limit of {format_count(getattr(self, name))}"
            for name, fraction in self.violations(profile).items()
            if fraction > 0
        ]
        return "; ".join(violations) or None
