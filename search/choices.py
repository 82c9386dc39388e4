"""Building blocks of spaces: draws a placement and hyperparameters from an Optuna trial."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

import optuna

from attention.spec import Option, Spec
from backbones.placement import Placement
from search.config import ClassWeights, ImageTraining, Optimizer, Schedule, Training

if TYPE_CHECKING:
    from backbones.site import Site

AnyTraining = TypeVar("AnyTraining", bound=Training)

# The parameters that a placement is drawn with: how many modules, then of module 1, 2, ... its site, behind
# the backbone's prefix, its type, and the options of its type.
MODULES, SITE, TYPE = "modules", "site", "type"
OPTIONS = ("ks", "normalisation", "decomposed_heads", "reduction", "heads")
_PART = re.compile(rf"(?:(?P<prefix>.*\.)?{SITE}|(?P<what>{TYPE}|{'|'.join(OPTIONS)}))(?P<module>[1-9]\d*)")

# An attribute of a trial that draws a placement, set before its first module is drawn: the prefix of its
# sites and how many there are. A sampler that draws whole placements needs both, and parameters tell neither.
SITES = "sites"

# Parameters that make `training` return the published defaults of SimpleSelfAttention.
PUBLISHED: Mapping[str, Any] = {
    "optimizer": "adamw",
    "adamw.learning_rate": 3e-3,
    "adamw.weight_decay": 1e-2,
    "batch_size": 64,
    "schedule": "one-cycle",
    "mixup": 0.0,
    "label_smoothing": 0.1,
}

# Strengths of augmentation beside crops and mirror images, each all of what it is made of.
AUGMENT: Mapping[str, Mapping[str, Any]] = {
    "light": {"policy": "none", "erasing": 0.0, "cutmix": 0.0},
    "standard": {"policy": "trivial", "erasing": 0.0, "cutmix": 0.0},
    "strong": {"policy": "rand", "erasing": 0.25, "cutmix": 1.0},
}

# Where papers put one module. SimpleSelfAttention and its symmetric form stand before the addition of the
# first stage's last block, where they are compared with SAGAN's module; decomposed attention stands near the
# end of the third stage, as in non-local networks (X. Wang et al. (2018), table 2).
PAPERS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("stage1 branch", {"type1": "ssa", "ks1": 1}),
    ("stage1 branch", {"type1": "ssa-sym", "ks1": 1}),
    ("stage1 branch", {"type1": "sagan"}),
    (
        "stage3",
        {"type1": "decomposed", "normalisation1": "softmax", "decomposed_heads1": 1, "reduction1": 2},
    ),
)


class PlacementParameter(NamedTuple):
    """What a parameter is of a placement: `SITE`, `TYPE` or an option of module `module`, the first being 1.

    `MODULES` is that of module 0. prefix: of the sites.
    """

    what: str
    module: int
    prefix: str = ""


def parse_parameter(parameter: str) -> PlacementParameter | None:
    """What the parameter of this name is of a placement, None where it is of something else."""
    if parameter == MODULES:
        return PlacementParameter(MODULES, 0)
    found = _PART.fullmatch(parameter)
    if found is None:
        return None
    return PlacementParameter(found["what"] or SITE, int(found["module"]), found["prefix"] or "")


def papers(sites: Sequence["Site"], prefix: str = "") -> list[dict[str, Any]]:
    """Parameters for `placement` and `training` that make the papers' placements, with published defaults.

    A placement whose stage there is none of is left out.
    """
    made = []
    for where, module in PAPERS:
        stage, _, branch = where.partition(" ")
        there = [
            i
            for i, site in enumerate(sites)
            if site.name.startswith(f"{stage}.") and site.name.endswith("branch") == bool(branch)
        ]
        if there:
            made.append({"modules": 1, f"{prefix}site1": there[-1], **module, **PUBLISHED})
    return made


def placement(
    trial: optuna.Trial,
    sites: Sequence["Site"],
    *,
    most: int = 3,
    prefix: str = "",
    kinds: Sequence[str] | None = None,
) -> Placement:
    """Up to `most` modules of any type at different `sites`, or of those of `kinds`.

    Sites are drawn in ascending order, each above the one before, so that a placement has exactly one
    name: no site comes twice and no order of the same modules is a separate choice.
    `prefix` separates the parameters of backbones whose sites differ.
    """
    return {
        sites[index].name: attention(trial, i, sites[index].channels, kinds)
        for i, index in enumerate(ascending(trial, len(sites), most=most, prefix=prefix), start=1)
    }


def ascending(trial: optuna.Trial, count: int, *, most: int, prefix: str = "") -> Iterator[int]:
    """Draws up to `most` different indices below `count`, each above the one before."""
    trial.set_user_attr(SITES, [prefix, count])
    modules, lowest = trial.suggest_int(MODULES, 0, min(most, count)), 0
    for i in range(1, modules + 1):
        index = trial.suggest_int(f"{prefix}{SITE}{i}", lowest, count - 1 - (modules - i))
        yield index
        lowest = index + 1


def attention(trial: optuna.Trial, i: int, channels: int, kinds: Sequence[str] | None = None) -> Spec:
    """The type and options of the `i`-th module, on a site of `channels` channels.

    kinds: as in `placement`.
    """
    from attention.attention_table import ATTENTIONS  # and torch, which takes seconds

    kind = trial.suggest_categorical(f"{TYPE}{i}", list(ATTENTIONS if kinds is None else kinds))
    options: dict[str, Option] = {}
    if kind == "ssa" or kind == "ssa-sym":
        options["ks"] = trial.suggest_categorical(f"ks{i}", [1, 3])
    elif kind == "decomposed":
        options["normalisation"] = trial.suggest_categorical(f"normalisation{i}", ["softmax", "scaling"])
        options["heads"] = trial.suggest_categorical(f"decomposed_heads{i}", [1, 2, 4])
        width = channels // trial.suggest_categorical(f"reduction{i}", [1, 2])
        options["key_channels"] = options["value_channels"] = width
    elif kind == "multihead":
        options["heads"] = trial.suggest_categorical(f"heads{i}", [1, 2, 4, 8])
    return Spec(kind, options)


def modules(sites: Sequence[int], kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with which `placement` puts one type of module at these sites, ascending."""
    given: dict[str, Any] = {MODULES: len(sites)}
    for i, index in enumerate(sites, start=1):
        given |= {f"{SITE}{i}": index, f"{TYPE}{i}": kind}
        given |= {f"{name}{i}": value for name, value in options.items()}
    return given


def optimisation(
    trial: optuna.Trial,
    training: AnyTraining,
    *,
    batch_sizes: Sequence[int],
    rates: tuple[float, float] = (3e-4, 2e-2),
    schedules: Sequence[Schedule] = ("one-cycle", "flat-cosine"),
) -> AnyTraining:
    """Return `training` with another batch size, learning rate, weight decay and schedule."""
    return replace(
        training,
        batch_size=trial.suggest_categorical("batch_size", batch_sizes),
        learning_rate=trial.suggest_float("learning_rate", *rates, log=True),
        weight_decay=trial.suggest_float("weight_decay", 1e-5, 1e-1, log=True),
        schedule=trial.suggest_categorical("schedule", schedules),  # type: ignore[arg-type]
    )


def training(trial: optuna.Trial, *, epochs: int) -> ImageTraining:
    """Optimiser, schedule and regularisation for `epochs` epochs."""
    optimizer: Optimizer = trial.suggest_categorical("optimizer", ["adamw", "sgd"])  # type: ignore[assignment]
    # The two optimisers' scales are orders of magnitude apart, so each has separate parameters.
    if optimizer == "adamw":
        learning_rate = trial.suggest_float("adamw.learning_rate", 3e-4, 3e-2, log=True)
        weight_decay = trial.suggest_float("adamw.weight_decay", 1e-4, 3e-1, log=True)
    else:
        learning_rate = trial.suggest_float("sgd.learning_rate", 1e-2, 1.0, log=True)
        weight_decay = trial.suggest_float("sgd.weight_decay", 1e-5, 1e-2, log=True)
    return ImageTraining(
        epochs=epochs,
        optimizer=optimizer,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        batch_size=trial.suggest_categorical("batch_size", [32, 64, 128]),
        schedule=trial.suggest_categorical("schedule", ["one-cycle", "flat-cosine"]),  # type: ignore[arg-type]
        mixup=round(trial.suggest_float("mixup", 0.0, 0.4, step=0.1), 1),  # 3 * 0.1 is not 0.3
        label_smoothing=round(trial.suggest_float("label_smoothing", 0.0, 0.2, step=0.05), 2),
    )


def augment(trial: optuna.Trial) -> dict[str, Any]:
    """A strength of augmentation, as values of `ImageTraining`."""
    return dict(AUGMENT[trial.suggest_categorical("augment", list(AUGMENT))])


def flip(trial: optuna.Trial) -> bool:
    """Whether half of the images are mirrored."""
    return bool(trial.suggest_categorical("flip", [True, False]))


def class_weights(trial: optuna.Trial) -> ClassWeights:
    """Of the classes in the loss."""
    chosen: ClassWeights = trial.suggest_categorical("class_weights", list(get_args(ClassWeights)))
    return chosen
