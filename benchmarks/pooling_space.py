"""A space with the four kinds of pooling from token vectors to one vector, for a confirmation.

automl search --space benchmarks/pooling_space.py:pooling --data DATA --trials 4 --name pooling
automl confirm --search pooling --top 3
"""

from typing import Any

import optuna

from automl.tasks.code_retrieval.space import BASELINE, POOLING, codesearch
from search.config import TrialConfig


def pooling(trial: optuna.Trial) -> TrialConfig:
    """Draw the pooling; all else is as in the space `codesearch` with self-attention."""
    chosen = trial.suggest_categorical("pooling", POOLING)
    return codesearch(optuna.trial.FixedTrial({**BASELINE, "pooling": chosen}))  # type: ignore[arg-type]


def with_weighted_mean(config: TrialConfig) -> TrialConfig:
    return config.change(model={"options": {**config.model.options, "pooling": POOLING[0]}})


_attributes: dict[str, Any] = {
    "baseline": {"pooling": POOLING[0]},
    "free": [{"pooling": name} for name in POOLING[1:]],
    "plain": {"pooling": POOLING[0]},
    "as_baseline": with_weighted_mean,
}
for _name, _value in _attributes.items():
    setattr(pooling, _name, _value)
