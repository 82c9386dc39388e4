"""Search spaces: pure functions from an Optuna trial to a TrialConfig, built in or user-defined."""

import hashlib
import inspect
import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json

from attention import InputError
from backbones.loading import load_object
from search import (
    code_spaces,
    decomposed_spaces,
    detection_spaces,
    image_spaces,
    sensor_spaces,
    stereo_spaces,
    study_spaces,
    vit_spaces,
)
from search.config import TrialConfig
from search.memory_study import memory_study

SpaceFunction = Callable[[optuna.Trial], TrialConfig]


# What a function may be given as an attribute, in values that can be written down.
ATTRIBUTES = ("baseline", "published", "plain")


def without_attention(config: TrialConfig) -> TrialConfig:
    """The plain backbone, with all else the same."""
    return config.change(model={"placement": {}})


@dataclass(frozen=True, kw_only=True)
class Space:
    """A search space: a function that draws a configuration, and what goes with it.

    A plain function of an Optuna trial works as a space, too. A `Space` adds the configurations to begin
    with.

    Attributes:
        name: The name of the space.
        draw: Draws a configuration with the trial's `suggest_` methods, and does nothing else.
        baseline: The parameters of trial 0: the plain backbone with published defaults. Parameters that are
            not named are drawn.
        summary: One line for `automl spaces`.
        published: Returns the parameters of the next trials: the placements that papers propose.
        plain: Parameters that make a trial plain, for trials that tune the baseline.
        as_baseline: Returns the configuration with the model of the baseline and its own hyperparameters. A
            configuration that it leaves unchanged is a baseline.
        with_backbone: Returns the space of another backbone, given its name and the image side in pixels, or
            None for the side of the space. None if the space has backbones of its own.

    Raises:
        InputError: `draw` raises an error, or does not return a `TrialConfig`.

    Example:
        >>> import automl, optuna
        >>> def draw(trial):
        ...     rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
        ...     return automl.TrialConfig().change(training={"learning_rate": rate})
        >>> given = {"learning_rate": 0.001}
        >>> space = automl.Space(name="rates", draw=draw, baseline=given, summary="One learning rate.")
        >>> space(optuna.trial.FixedTrial({"learning_rate": 0.005})).training.learning_rate
        0.005
    """

    name: str
    draw: Callable[[optuna.Trial], TrialConfig]
    baseline: Mapping[str, Any]
    summary: str
    published: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    plain: Mapping[str, Any] = field(default_factory=lambda: {"modules": 0})
    as_baseline: Callable[[TrialConfig], TrialConfig] = without_attention
    with_backbone: Callable[[str, int | None], "Space"] | None = None

    def __call__(self, trial: optuna.Trial) -> TrialConfig:
        """`draw`, with errors of a user-defined function as an InputError."""
        try:
            config: object = self.draw(trial)
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
        return config.load()


def random_draws(
    space: Space, count: int, *, seed: int = 0, given: Mapping[str, Any] | None = None
) -> Iterator[tuple[optuna.Trial, TrialConfig | None]]:
    """Draws independent of any search: each trial and its configuration, None where the space refuses.

    given: parameters of the first one.
    """
    study = memory_study(optuna.samplers.RandomSampler(seed))
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
    if config is None:
        return None
    value = config.change(data={"path": None}, seed=0).to_json()
    model = value["model"]
    if model["code"]:  # which tells, wherever its file lies
        model["backbone"] = model["backbone"].rpartition("/")[2]
    return value


def _rounded(value: Any) -> Any:
    """With floats as text of six digits: the last ones may differ between machines."""
    if isinstance(value, Mapping):
        return {key: _rounded(value[key]) for key in sorted(value)}
    return f"{value:.6g}" if isinstance(value, float) else value


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _photographs(
    name: str,
    summary: str,
    backbones: Sequence[str] = image_spaces.XRESNETS,
    size: int = 128,
    *,
    augment: bool = False,
) -> Space:
    """Photographs of the data source called `name`. augment: its strength is a choice, too."""
    return Space(
        name=name,
        draw=image_spaces.photographs(name, backbones, size, augment=augment),
        baseline=image_spaces.plain(backbones, augment=augment),
        published=lambda: image_spaces.papers(backbones, size, augment=augment),
        summary=summary,
        with_backbone=lambda backbone, side: _photographs(
            name, summary, (backbone,), side or size, augment=augment
        ),
    )


def _coco(backbone: str = detection_spaces.FULL.backbone) -> Space:
    """Images with objects in COCO's layout, with another trunk."""
    model = replace(detection_spaces.FULL, backbone=backbone)
    return Space(
        name="coco-da",
        draw=detection_spaces.coco_da(backbone),
        baseline=detection_spaces.COCO_PLAIN,
        published=partial(detection_spaces.published, model, detection_spaces.COCO_PLAIN),
        summary="Mask R-CNN, attention in its trunk and pyramid; --data of COCO's layout",
        with_backbone=lambda name, _: _coco(name),
    )


SPACES: Mapping[str, Space] = {
    space.name: space
    for space in (
        Space(
            name="digits",
            draw=image_spaces.digits,
            baseline=image_spaces.PLAIN,
            published=image_spaces.digits_papers,
            summary="8x8 handwritten digits at 32 px, quarter-width xresnet18; seconds an epoch on a CPU",
        ),
        _photographs("nette", "Imagenette at 128 px, xresnet18/34/50 or --backbone"),
        _photographs("woof", "Imagewoof at 128 px, xresnet18/34/50 or --backbone"),
        _photographs(
            "folder",
            "--data PHOTOS, one folder per class, at 128 px; as woof, and augmentation",
            augment=True,
        ),
        *(
            Space(
                name=name,
                draw=decomposed_spaces.decomposed(backbone),
                baseline=image_spaces.PLAIN,
                published=partial(decomposed_spaces.papers, backbone),
                summary=f"0 to 7 decomposed attentions after res3 and res4 of {backbone}; --data PHOTOS",
            )
            for name, backbone in (
                ("resnet50-da", "torchvision:resnet50"),
                ("resnext101-da", "torchvision:resnext101_32x8d"),
            )
        ),
        Space(
            name="vit",
            draw=vit_spaces.vit,
            baseline=vit_spaces.VIT_BASELINE,
            published=partial(vit_spaces.papers, vit_spaces.VIT_BASELINE),
            summary="vision transformers: kind of block, stem, size, attention; --data PHOTOS, 224 px",
        ),
        Space(
            name="faces",
            draw=vit_spaces.faces,
            baseline=vit_spaces.FACES_BASELINE,
            published=partial(vit_spaces.papers, vit_spaces.FACES_BASELINE),
            summary="as vit with patches of 12 pixels; --data FACES, one folder per person, at 168 px",
        ),
        Space(
            name="vit-published",
            draw=vit_spaces.published,
            baseline=vit_spaces.BLOCKS_BASELINE,
            published=vit_spaces.published_blocks,
            plain={"block": "block"},
            as_baseline=vit_spaces.as_plain_block,
            summary="kinds of transformer blocks as published, 25 epochs; --data FACES, 168 px",
        ),
        Space(
            name="deit",
            draw=vit_spaces.deit,
            baseline=vit_spaces.DEIT_BASELINE,
            published=vit_spaces.deit_papers,
            summary="attention in DeiT-Ti, with its training; --data PHOTOS, 224 px",
        ),
        *(
            Space(
                name=name,
                draw=draw,
                baseline=lstm,
                published=lambda best=best: [best],  # type: ignore[misc]
                plain={"backbone": "bilstm"},
                as_baseline=sensor_spaces.as_lstm,
                summary=f"LARNN's {which} published search, {epochs} epochs; UCI HAR or --data",
            )
            for name, draw, lstm, best, which, epochs in (
                (
                    "larnn",
                    sensor_spaces.larnn,
                    sensor_spaces.FIRST_LSTM,
                    sensor_spaces.FIRST_BEST,
                    "first",
                    sensor_spaces.FIRST.epochs,
                ),
                (
                    "ucihar",
                    sensor_spaces.ucihar,
                    sensor_spaces.SECOND_LSTM,
                    sensor_spaces.SECOND_BEST,
                    "second",
                    sensor_spaces.SECOND.epochs,
                ),
            )
        ),
        Space(
            name="sensors",
            draw=sensor_spaces.sensors,
            baseline=sensor_spaces.PLAIN,
            summary="attention in a residual 1-D CNN on sequences of sensors; UCI HAR or --data",
        ),
        Space(
            name="codesearch",
            draw=code_spaces.codesearch,
            baseline=code_spaces.BASELINE,
            published=code_spaces.published,
            plain=code_spaces.PLAIN,
            as_baseline=code_spaces.as_selfattention,
            summary="encoders of queries and code, and attention in them; --data FOLDER of source code",
        ),
        *(
            Space(
                name=name,
                draw=draw,
                baseline=plain,
                published=stereo_spaces.decomposed(data, model, plain),
                summary=summary,
            )
            for name, draw, data, model, plain, summary in (
                (
                    "planes",
                    stereo_spaces.planes,
                    stereo_spaces.PLANES,
                    stereo_spaces.SMALL,
                    stereo_spaces.PLANES_PLAIN,
                    "disparities of bundled stereo pairs of 80x176 pixels; a narrow PSMNet",
                ),
                (
                    "sceneflow",
                    stereo_spaces.sceneflow,
                    stereo_spaces.SCENEFLOW,
                    stereo_spaces.FULL,
                    stereo_spaces.SCENEFLOW_PLAIN,
                    "PSMNet as published; --data of Scene Flow, KITTI, Middlebury or a CSV of pairs",
                ),
            )
        ),
        Space(
            name="scenes",
            draw=detection_spaces.scenes,
            baseline=detection_spaces.SCENES_PLAIN,
            published=partial(
                detection_spaces.published, detection_spaces.SMALL, detection_spaces.SCENES_PLAIN
            ),
            summary="boxes and masks of digits in bundled scenes of 96 px; a narrow Mask R-CNN",
        ),
        _coco(),
    )
}

# The grids of `automl studies`, which can be named as other spaces can.
STUDY_SPACES: Mapping[str, Space] = {
    name: Space(
        name=name,
        draw=grid.draw,
        baseline=grid.reference,
        plain=grid.reference,
        as_baseline=grid.as_reference,
        summary=grid.summary,
    )
    for name, grid in study_spaces.GRIDS.items()
}


def space_name(space: "str | SpaceFunction | Space") -> str:
    """A space's name; `module:function` of a function, such as `__main__:mine` of one in a notebook."""
    if isinstance(space, str):
        return space
    if isinstance(space, Space):
        return space.name
    function = inspect.unwrap(space)
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(space).__name__)}"


def source_of(space: Space) -> str:
    """The Python of the function that draws, and what it was given as attributes; empty where it has none.

    What it imports and calls is not in it.
    """
    draw = space.draw
    try:
        lines = [inspect.cleandoc("\n" + inspect.getsource(draw))]
    except (OSError, TypeError):
        return ""
    name = getattr(draw, "__name__", "draw")
    lines += [f"{name}.{key} = {getattr(draw, key)!r}" for key in ATTRIBUTES if hasattr(draw, key)]
    return "\n".join(lines) + "\n"


def load(given: "str | SpaceFunction | Space", backbone: str | None = None, size: int | None = None) -> Space:
    """The space `given`: a name of the table, `file.py:function`, `package.module:function`, or a function.

    backbone: in the place of the space's own, for images of `size` pixels.

    A user-defined function may have the attributes of a Space: `baseline`, `published` (a list), `plain`,
    `as_baseline` and `with_backbone`; without them trial 0 and the trials that tune the baseline draw with
    `modules` = 0. Raises InputError when there is no such space or it cannot be loaded.
    """
    if backbone is not None:
        space = load(given)
        if space.with_backbone is None:
            those = [other.name for other in SPACES.values() if other.with_backbone]
            raise InputError(
                f"space {space.name!r} has backbones of its own and takes no --backbone; spaces that do are "
                f"{', '.join(those)}"
            )
        return space.with_backbone(backbone, size)
    name = space_name(given)
    if isinstance(given, str) and name in (named := {**SPACES, **STUDY_SPACES}):
        return named[name]
    draw = load_object("space", "function", name, SPACES) if isinstance(given, str) else given
    if isinstance(draw, Space):
        return draw
    plain = getattr(draw, "plain", {"modules": 0})
    return Space(
        name=name,
        draw=draw,
        baseline=getattr(draw, "baseline", plain),
        published=lambda: getattr(draw, "published", ()),
        plain=plain,
        as_baseline=getattr(draw, "as_baseline", without_attention),
        summary=name,
        with_backbone=getattr(draw, "with_backbone", None),
    )
