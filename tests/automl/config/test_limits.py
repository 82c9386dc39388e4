import pytest

from automl.config.nouns import Limits

PROFILE = {"params": 2.5e6, "macs": 1e9, "memory": 3e9, "latency": 20.0, "time_ratio": 1.5}


@pytest.mark.parametrize(("limits", "violations", "excess"), [
    (Limits(), {}, None),
    (Limits(params=5e6), {"params": -0.5}, None),
    (Limits(params=2.5e6), {"params": 0.0}, None),
    (Limits(params=2e6), {"params": 0.25}, "params 2.5M exceeds the limit of 2M"),
    (Limits(params=2e6, macs=4e9, memory=2e9, latency=10), {"params": 0.25, "macs": -0.75, "memory": 0.5,
     "latency": 1.0}, "params 2.5M exceeds the limit of 2M; memory 3G exceeds the limit of 2G; "
     "latency 20 exceeds the limit of 10"),
])  # fmt: skip
def test_limits(limits: Limits, violations: dict[str, float], excess: str | None) -> None:
    assert limits.violations(PROFILE) == violations
    assert limits.excess(PROFILE) == excess
    assert limits.nothing is (not violations)
