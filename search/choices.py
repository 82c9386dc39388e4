"""Building blocks of spaces: draw a placement and hyperparameters from a trial, and read them back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

from attention.options import OptionValue
from attention.spec import Placement, Spec
from automl.base import loading
from search.config import TASKS, Optimizer, Schedule, Training, TrialConfig
from search.config.sections import ClassWeights

if TYPE_CHECKING:
    from optuna import Trial

    from backbones.site import Site

AnyTraining = TypeVar("AnyTraining", bound=Training)

# Parameters of a placement: the number of modules, then for module 1, 2, ... its site (after the prefix of
# the backbone), its type and the options of the type. Options of types outside of `TYPES` are called
# `option1.TYPE.NAME`.
MODULES, SITE, TYPE = "modules", "site", "type"
OPTIONS = ("ks", "normalisation", "decomposed_heads", "reduction", "heads")
OWN = "option"
NO_TYPE = ""  # type of modules in a space that draws no types
_PARAMETER = re.compile(
    rf"(?:(?P<prefix>.*\.)?{SITE}|(?P<kind>{TYPE}|{'|'.join(OPTIONS)}))(?P<module>[1-9]\d*)"
)
_OWN_OPTION = re.compile(rf"{OWN}(?P<module>[1-9]\d*)\.(?P<kind>.+)")

# User attribute of a trial: the prefix of its sites and their number. It is set before the first module is
# drawn, because a sampler of whole placements needs both and cannot get them from the parameters.
SITES = "sites"

# Parameters with which `training` returns the published defaults of SimpleSelfAttention.
PUBLISHED: Mapping[str, Any] = {
    "optimizer": "adamw",
    "adamw.learning_rate": 3e-3,
    "adamw.weight_decay": 1e-2,
    "batch_size": 64,
    "schedule": "one-cycle",
    "mixup": 0.0,
    "label_smoothing": 0.1,
}

# Parameters with which `fine_tuning` returns the defaults for trained weights.
FINE_TUNING: Mapping[str, Any] = {**PUBLISHED, "layer_decay": 1.0}

# Attention types of the built-in spaces unless --attention names others: those of the papers, and the
# control. A new type of the table is not added here, since it would change the spaces of old searches.
TYPES = ("ssa", "ssa-sym", "sagan", "decomposed", "multihead", "conv1x1")
LINEAR = ("decomposed", "ssa", "ssa-sym", "conv1x1")  # time and memory grow linearly with the positions

# Strengths of augmentation in addition to crops and mirror images.
AUGMENT: Mapping[str, Mapping[str, Any]] = {
    "light": {"policy": "none", "erasing": 0.0, "cutmix": 0.0},
    "standard": {"policy": "trivial", "erasing": 0.0, "cutmix": 0.0},
    "strong": {"policy": "rand", "erasing": 0.25, "cutmix": 1.0},
}

# Sites of one module in papers. SimpleSelfAttention and its symmetric form are inserted before the addition
# of the first stage's last block, where they are compared with SAGAN's module. Decomposed attention is
# inserted near the end of the third stage, as in non-local networks (X. Wang et al. (2018), table 2).
# Attention with heads is inserted in the last stage that the backbone has, as in BoTNet (arXiv 2101.11605).
# Rules of thumb follow: one module at the end of each of the first `MOST` stages, and the control at sites of
# papers.
LAST, EVERY = "last", "every"
FREE: Sequence[tuple[str, str, Mapping[str, Any]]] = (
    ("stage1 branch", "ssa", {"ks": 1}),
    ("stage1 branch", "ssa-sym", {"ks": 1}),
    ("stage1 branch", "sagan", {}),
    ("stage3", "decomposed", {"normalisation": "softmax", "decomposed_heads": 1, "reduction": 2}),
    (LAST, "multihead", {"heads": 4}),
    (EVERY, "ssa", {"ks": 1}),
    ("stage1 branch", "conv1x1", {}),
    ("stage3", "conv1x1", {}),
)
MOST = 3  # modules of a placement by default


class PlacementParameter(NamedTuple):
    """Role of a placement's parameter: its kind, its module from 1 (0 for `MODULES`), its sites' prefix."""

    kind: str
    module: int
    prefix: str = ""


def parse_parameter(parameter: str) -> PlacementParameter | None:
    """Return the role of a parameter in a placement, or None if it has none."""
    if parameter == MODULES:
        return PlacementParameter(MODULES, 0)
    if own := _OWN_OPTION.fullmatch(parameter):
        return PlacementParameter(own["kind"], int(own["module"]))
    match = _PARAMETER.fullmatch(parameter)
    if match is None:
        return None
    return PlacementParameter(match["kind"] or SITE, int(match["module"]), match["prefix"] or "")


def types_of(parameters: Mapping[str, Any]) -> set[str]:
    """Return the attention types in the parameters of a trial."""
    roles = ((parse_parameter(name), value) for name, value in parameters.items())
    return {value for parameter, value in roles if parameter is not None and parameter.kind == TYPE}


def free(
    sites: Sequence[Site], prefix: str = "", *, baseline: Mapping[str, Any] = PUBLISHED
) -> list[dict[str, Any]]:
    """Return parameters of the free answers, in stages that exist, with the baseline's hyperparameters.

    Args:
        sites: The sites of a backbone, in their order.
        prefix: The prefix of the parameters of sites.
        baseline: The parameters of the baseline.
    """
    ends: dict[str, dict[bool, int]] = {}  # index of the last site of a stage, and of the last in a branch
    for i, site in enumerate(sites):
        ends.setdefault(site.name.partition(".")[0], {})[site.name.endswith("branch")] = i
    last, every = sites[-1].name.partition(".")[0], [stage for stage in ends if stage.startswith("stage")]
    answers = []
    for position, kind, options in FREE:
        stage, _, branch = position.partition(" ")
        stages = {LAST: [last], EVERY: every[:MOST]}.get(stage, [stage])
        chosen = sorted(ends[each][bool(branch)] for each in stages if bool(branch) in ends.get(each, {}))
        if len(chosen) > (stage == EVERY):
            answers.append({**baseline, **modules(chosen, kind, options, prefix)})
    return answers


def placement(
    trial: Trial,
    sites: Sequence[Site],
    *,
    most: int = MOST,
    prefix: str = "",
    kinds: Sequence[str] = TYPES,
) -> Placement:
    """Draw up to `most` modules at different sites, of the attention types `kinds`.

    Sites are drawn in ascending order. So each placement has exactly one name: no site is drawn twice, and
    the order of modules is not a separate choice. `prefix` is that of the parameters, which keeps backbones
    with different sites apart.
    """
    return {
        sites[index].name: attention(trial, i, sites[index].channels, kinds)
        for i, index in enumerate(ascending(trial, len(sites), most=most, prefix=prefix), start=1)
    }


def ascending(trial: Trial, count: int, *, most: int, least: int = 0, prefix: str = "") -> Iterator[int]:
    """Draw `least` to `most` different indices below `count`, in ascending order."""
    trial.set_user_attr(SITES, [prefix, count])
    modules, lowest = trial.suggest_int(MODULES, least, min(most, count)), 0
    for i in range(1, modules + 1):
        index = trial.suggest_int(f"{prefix}{SITE}{i}", lowest, count - 1 - (modules - i))
        yield index
        lowest = index + 1


def attention(trial: Trial, i: int, channels: int, kinds: Sequence[str] = TYPES) -> Spec:
    """Draw the type and the options of module `i` (from 1), for a site with `channels` channels.

    The parameters hold a user-defined type without the folder of its file, which may move.
    """
    names = {loading.short_name(name): name for name in kinds}
    kind = trial.suggest_categorical(f"{TYPE}{i}", list(names))
    name = names[kind]
    options: dict[str, OptionValue] = {}
    if kind == "ssa" or kind == "ssa-sym":
        options["ks"] = trial.suggest_categorical(f"ks{i}", [1, 3])
    elif kind == "decomposed":
        options["normalisation"] = trial.suggest_categorical(f"normalisation{i}", ["softmax", "scaling"])
        heads = trial.suggest_categorical(f"decomposed_heads{i}", [1, 2, 4])
        width = max(1, channels // trial.suggest_categorical(f"reduction{i}", [1, 2]))
        options["heads"], options["key_channels"], options["value_channels"] = gcd(heads, width), width, width
    elif kind == "multihead":
        options["heads"] = gcd(trial.suggest_categorical(f"heads{i}", [1, 2, 4, 8]), channels)
    elif kind not in TYPES:
        from attention.attention_type import find_attention  # imports torch, which takes seconds

        options = find_attention(name).suggest(trial, f"{OWN}{i}.{kind}.", channels)
    return Spec(name, options)


def modules(sites: Sequence[int], kind: str, options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the parameters with which `placement` puts modules of one type at the sites of these indices."""
    parameters: dict[str, Any] = {MODULES: len(sites)}
    for i, index in enumerate(sites, start=1):
        parameters |= {f"{prefix}{SITE}{i}": index, f"{TYPE}{i}": kind}
        parameters |= {f"{name}{i}": value for name, value in options.items()}
    return parameters


def plain(**hyperparameters: Any) -> dict[str, Any]:
    """Return the parameters with which a space draws no module and these hyperparameters."""
    return {MODULES: 0, **hyperparameters}


def optimisation(
    trial: Trial,
    training: AnyTraining,
    *,
    batch_sizes: Sequence[int],
    rates: tuple[float, float] = (3e-4, 2e-2),
    schedules: Sequence[Schedule] = ("one-cycle", "flat-cosine"),
) -> AnyTraining:
    """Return `training` with a drawn batch size, learning rate, weight decay and schedule."""
    return replace(
        training,
        batch_size=trial.suggest_categorical("batch_size", batch_sizes),
        learning_rate=trial.suggest_float("learning_rate", *rates, log=True),
        weight_decay=trial.suggest_float("weight_decay", 1e-5, 1e-1, log=True),
        schedule=trial.suggest_categorical("schedule", schedules),  # type: ignore[arg-type]
    )


def training(trial: Trial, *, epochs: int, rate: float = 1.0) -> Any:
    """Draw optimiser, schedule and regularisation of the default task, images, for `epochs` epochs.

    `rate` is a factor of the range of learning rates.
    """
    optimizer: Optimizer = trial.suggest_categorical("optimizer", ["adamw", "sgd"])  # type: ignore[assignment]
    # Each optimiser has its own parameters, because good values differ by orders of magnitude.
    if optimizer == "adamw":
        learning_rate = trial.suggest_float("adamw.learning_rate", 3e-4 * rate, 3e-2 * rate, log=True)
        weight_decay = trial.suggest_float("adamw.weight_decay", 1e-4, 3e-1, log=True)
    else:
        learning_rate = trial.suggest_float("sgd.learning_rate", 1e-2 * rate, rate, log=True)
        weight_decay = trial.suggest_float("sgd.weight_decay", 1e-5, 1e-2, log=True)
    kind: Any = TASKS[TrialConfig.task].training
    return kind(
        epochs=epochs,
        optimizer=optimizer,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        batch_size=trial.suggest_categorical("batch_size", [32, 64, 128]),
        schedule=trial.suggest_categorical("schedule", ["one-cycle", "flat-cosine"]),
        mixup=round(trial.suggest_float("mixup", 0.0, 0.4, step=0.1), 1),  # 3 * 0.1 is not 0.3
        label_smoothing=round(trial.suggest_float("label_smoothing", 0.0, 0.2, step=0.05), 2),
    )


def fine_tuning(trial: Trial, *, epochs: int) -> Any:
    """Draw a training of the default task, images, that starts from trained weights.

    Learning rates are a third of those of `training`, and may fall towards the first layers.
    """
    return replace(
        training(trial, epochs=epochs, rate=1 / 3),
        layer_decay=trial.suggest_categorical("layer_decay", [0.65, 0.8, 1.0]),
    )


def augment(trial: Trial) -> dict[str, Any]:
    """Draw a strength of augmentation. Return it as values of a training on images."""
    return dict(AUGMENT[trial.suggest_categorical("augment", list(AUGMENT))])


def flip(trial: Trial) -> bool:
    """Draw whether half of the images are mirrored."""
    return bool(trial.suggest_categorical("flip", [True, False]))


def class_weights(trial: Trial) -> ClassWeights:
    """Draw the weights of the classes in the loss."""
    result: ClassWeights = trial.suggest_categorical("class_weights", list(get_args(ClassWeights)))
    return result
