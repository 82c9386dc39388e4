"""Search spaces: pure functions from an Optuna trial to a TrialConfig, built in or a person's own."""

import hashlib
import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.distributions import distribution_to_json

from attention import InputError
from backbones import Site, build, sites
from search import choices
from search.config import ImageData, Model, TrialConfig
from search.loading import load_object


@dataclass(frozen=True, kw_only=True)
class Space:
    """A space.

    draw: chooses a configuration with the trial's `suggest_` methods, and nothing else.
    baseline: parameters that trial 0 is given: the plain backbone with its published defaults.
        Parameters that are not named are drawn.
    published: gives the parameters of the next trials: what papers propose.
    plain: parameters that make a trial plain, for those that tune the baseline.
    summary: one line for `automl spaces`.
    """

    name: str
    draw: Callable[[optuna.Trial], TrialConfig]
    baseline: Mapping[str, Any]
    summary: str
    published: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    plain: Mapping[str, Any] = field(default_factory=lambda: {"modules": 0})

    def __call__(self, trial: optuna.Trial) -> TrialConfig:
        """`draw`, with what a person's own function can get wrong as an InputError."""
        try:
            config = self.draw(trial)
        except (optuna.TrialPruned, InputError):
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise InputError(
                f"space {self.name!r} raised {type(error).__name__}: {error} "
                f"({Path(where.filename).name}, line {where.lineno})"
            ) from error
        if not isinstance(config, TrialConfig):
            raise InputError(
                f"space {self.name!r} must return a search.config.TrialConfig; got {type(config).__name__}"
            )
        return config


def random_draws(
    space: Space, count: int, *, seed: int = 0, given: Mapping[str, Any] | None = None
) -> Iterator[tuple[optuna.Trial, TrialConfig | None]]:
    """Draws apart from any search: each trial and its configuration, None where the space refuses.

    given: parameters of the first one.
    """
    loud = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study in memory is no news
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    optuna.logging.set_verbosity(loud)
    if given is not None:
        study.enqueue_trial(dict(given))
    for _ in range(count):
        trial = study.ask()
        try:
            yield trial, space(trial)
        except optuna.TrialPruned:
            yield trial, None


def fingerprint(space: Space) -> str:
    """Of a space: `PARAMETERS-CONFIGURATIONS`, of what it draws from and of what it makes of that.

    The same for two spaces whose trials can stand in one study. It is of 50 random draws and has nothing of
    the command line in it. The seed is left out, and where the images lie: which these are, the search's list
    of images tells.

    Raises InputError for a space whose configurations do not follow from the parameters.
    """
    drawn, again = (list(random_draws(space, 50)) for _ in range(2))
    parts = set()
    for trial, _ in drawn:
        parts |= {(name, distribution_to_json(kind)) for name, kind in trial.distributions.items()}
    # Ranges that depend on an earlier choice have many forms; of those the names alone.
    names = Counter(name for name, _ in parts)
    distributions = {(name, kind if names[name] == 1 else "") for name, kind in parts}
    made, twice = (
        [(_rounded(trial.params), _rounded(_essence(config))) for trial, config in draws]
        for draws in (drawn, again)
    )
    if made != twice:
        raise InputError(
            f"space {space.name!r} makes another configuration of the same parameters each time; draw "
            f"whatever varies with the trial's suggest_ methods"
        )
    return f"{_hash(sorted(distributions))}-{_hash(made)}"


def same_parameters(one: str, other: str) -> bool:
    """Whether two fingerprints are of spaces that draw the same parameters, whatever they make of them."""
    return one.partition("-")[0] == other.partition("-")[0]


def _essence(config: TrialConfig | None) -> dict[str, Any] | None:
    """What decides on what is computed; None of a refused draw."""
    return None if config is None else config.change(data={"path": None}, seed=0).to_json()


def _rounded(value: Any) -> Any:
    """With floats as text of six digits: the last ones may differ between machines."""
    if isinstance(value, Mapping):
        return {key: _rounded(value[key]) for key in sorted(value)}
    return f"{value:.6g}" if isinstance(value, float) else value


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


@cache
def _sites(backbone: str, width: float) -> list[Site]:
    """Sites by name and channels. The last stages of a 128-pixel image still have several positions."""
    return sites(build(backbone, classes=2, width=width), torch.empty(1, 3, 128, 128))


def _places() -> list[Site]:
    # At 32 pixels the last stage is a single position, where there is nothing to attend to.
    return [site for site in _sites("xresnet18", 0.25) if not site.name.startswith("stage4")]


def digits(trial: optuna.Trial) -> TrialConfig:
    return TrialConfig(
        data=ImageData(source="digits", size=32),
        model=Model(
            backbone="xresnet18", options={"width": 0.25}, placement=choices.placement(trial, _places())
        ),
        training=choices.training(trial, epochs=6),
    )


def _photographs(source: str) -> Callable[[optuna.Trial], TrialConfig]:
    def draw(trial: optuna.Trial) -> TrialConfig:
        backbone = trial.suggest_categorical("backbone", ["xresnet18", "xresnet34", "xresnet50"])
        places = choices.placement(trial, _sites(backbone, 1.0), prefix=f"{backbone}.")
        return TrialConfig(
            data=ImageData(source=source, size=128),
            model=Model(backbone=backbone, placement=places),
            training=choices.training(trial, epochs=5),
        )

    return draw


_PLAIN = {"modules": 0, **choices.PUBLISHED}


def _xresnet18_papers() -> list[dict[str, Any]]:
    return [{"backbone": "xresnet18", **p} for p in choices.papers(_sites("xresnet18", 1.0), "xresnet18.")]


SPACES: Mapping[str, Space] = {
    space.name: space
    for space in (
        Space(
            name="digits",
            draw=digits,
            baseline=_PLAIN,
            published=lambda: choices.papers(_places()),
            summary="8x8 handwritten digits at 32 px, quarter-width xresnet18; seconds an epoch on a CPU",
        ),
        Space(
            name="nette",
            draw=_photographs("nette"),
            baseline={"backbone": "xresnet18", **_PLAIN},
            published=_xresnet18_papers,
            summary="Imagenette at 128 px, xresnet18/34/50",
        ),
        Space(
            name="woof",
            draw=_photographs("woof"),
            baseline={"backbone": "xresnet18", **_PLAIN},
            published=_xresnet18_papers,
            summary="Imagewoof at 128 px, xresnet18/34/50",
        ),
    )
}


def load(name: str) -> Space:
    """The space called `name`: one of the table, `file.py:function` or `package.module:function`.

    A function of one's own may carry attributes of a Space: `baseline`, `published` (a list) and `plain`;
    without them trial 0 and the trials that tune the baseline draw with `modules` = 0. Raises InputError
    when there is no such space or it cannot be loaded.
    """
    if name in SPACES:
        return SPACES[name]
    draw = load_object("space", name, SPACES)
    if isinstance(draw, Space):
        return draw
    if not callable(draw):
        raise InputError(f"space {name!r} must be a function of an Optuna trial; got {draw!r}")
    plain = getattr(draw, "plain", {"modules": 0})
    return Space(
        name=name,
        draw=draw,
        baseline=getattr(draw, "baseline", plain),
        published=lambda: getattr(draw, "published", ()),
        plain=plain,
        summary=name,
    )
