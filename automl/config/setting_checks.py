"""Check the settings of a search, before anything is read or trained."""

from dataclasses import fields
from math import inf, isfinite
from types import UnionType
from typing import TYPE_CHECKING, Literal, get_args

from attention.attention_table import check_name as check_type
from automl.base import loading
from automl.base.errors import InputError, check_utf8, unknown
from automl.base.names import check_name
from automl.base.options import option_name
from automl.base.units import pluralize
from search.choices import AUGMENT
from search.config.sections import ClassWeights
from search.grid import GRID

if TYPE_CHECKING:
    from automl.config.settings import Settings

EQUAL = ("time", "epochs")
INIT = ("scratch", "shared")
STOP = ("decided", "never")
Precision = Literal["auto", "bf16", "fp16", "fp32"]
Compile = Literal["auto", "off", "graphs", "inductor"]
# Settings that the user's own training function does not get.
OF_TASKS = (
    "backbone", "backbone_option", "weights", "subset", "size", "batch_size", "mixup", "flip", "augment",
    "class_weights", "init", "compile", "max_cache", "context", "full", "vocabulary", "distil",
)  # fmt: skip
# Settings of the metric of a training function.
OF_FUNCTIONS = ("minimize", "margin", "unit", "chance")
# Names of types in messages.
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def check_settings(settings: "Settings") -> None:
    """Raise InputError for the first setting that is invalid or contradicts another one."""
    _check_types(settings)
    for key in ("trials", "shared_trainings", "seeds", "keep", "concurrent"):
        value = getattr(settings, key)
        if value is not None and value < 1:
            raise InputError(f"{option_name(key)} must be 1 or more; got {value}")
    if not 0 <= settings.seed < 2**32:
        raise InputError(f"--seed must lie between 0 and 2^32 - 1; got {settings.seed}")
    if settings.margin is not None and not 0 <= settings.margin < inf:
        raise InputError(f"--margin must be 0 or more; got {settings.margin:g}")
    if settings.chance is not None and not isfinite(settings.chance):
        raise InputError(f"--chance must be a finite number; got {settings.chance:g}")
    if not 0 <= settings.baseline_share <= 1:
        raise InputError(f"--baseline-share must be between 0 and 1; got {settings.baseline_share:g}")
    if settings.max_latency_ms is not None and not 0 < settings.max_latency_ms < inf:
        raise InputError(f"--max-latency-ms must be above 0; got {settings.max_latency_ms:g}")
    if settings.distil is not None and not 0 <= settings.distil <= 1:
        raise InputError(f"--distil must lie between 0 and 1; got {settings.distil:g}")
    for what, value, choices in (
        ("value of --equal", settings.equal, EQUAL if settings.has_space else ("time", "none")),
        ("value of --init", settings.init, INIT),
        ("value of --stop", settings.stop, STOP),
        ("precision", settings.precision, get_args(Precision)),
        ("value of --compile", settings.compile, get_args(Compile)),
        ("augmentation", settings.augment, tuple(AUGMENT)),
        ("class weights", settings.class_weights, get_args(ClassWeights)),
    ):
        if value is not None and value not in choices:
            raise unknown(what, value, choices)
    if settings.shares_training and "," in (settings.objective or ""):
        raise InputError(
            f"--init shared allows one objective; got --objective {settings.objective}. Give one objective, "
            f"or leave --init shared out"
        )
    for key in ("name", "study"):  # each names a folder
        if (name := getattr(settings, key)) is not None:
            check_name(name, option_name(key))
    _check_function(settings)
    _check_grid(settings)
    _check_attention(settings)


def _check_types(settings: "Settings") -> None:
    """Raise InputError for the first value of a wrong type."""
    if not (callable(settings.space) or isinstance(settings.space, str)) or not settings.space:
        raise InputError(
            f"--space must be a name of `automl spaces`, file.py:function or module:function, or from "
            f"Python a function; got {settings.space!r}"
        )
    for field in fields(settings):
        value = getattr(settings, field.name)
        kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        names = [TYPE_NAMES[kind] for kind in kinds if kind in TYPE_NAMES]
        is_valid = type(value) in kinds or (type(value) is int and float in kinds)
        if isinstance(value, str):
            check_utf8(option_name(field.name), value)
        if field.name != "space" and names and not is_valid:
            raise InputError(f"{option_name(field.name)} must be {names[0]}; got {value!r}")
        is_list = isinstance(value, tuple) and field.name != "callbacks"
        if is_list and not all(isinstance(item, str) for item in value):
            raise InputError(f"{option_name(field.name)} must be a list of text; got {value!r}")


def _check_function(settings: "Settings") -> None:
    defaults = {field.name: field.default for field in fields(settings)}
    changed = {key for key, default in defaults.items() if getattr(settings, key) != default}
    if settings.train is None:
        for key in OF_FUNCTIONS:
            if key in changed:
                raise InputError(f"{option_name(key)} needs --train; built-in tasks have their metrics")
        return
    if not settings.metric:
        raise InputError("--train needs --metric, the name of the metric that the function reports")
    for key in OF_TASKS:
        if key in changed:
            raise InputError(f"{option_name(key)} is for built-in tasks; leave it out with --train")
    _ = settings.reported  # raises InputError for an invalid metric


def _check_attention(settings: "Settings") -> None:
    types = settings.attention_types or []
    if settings.attention is not None and not types:
        raise InputError(f"--attention must name types, such as ssa,timm:se; got {settings.attention!r}")
    for name in types:
        check_type(name)
    names = [loading.short_name(name) for name in types]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--attention must name each type once, also files of one name; got {twice[0]}")


def _check_grid(settings: "Settings") -> None:
    if settings.sampler != GRID:
        if settings.test:
            raise InputError(
                "--test needs --sampler grid, which selects nothing by its scores. Add --sampler grid, "
                "or test a finished search with automl confirm"
            )
        if settings.seeds > 1:
            raise InputError(
                f"--seeds {settings.seeds} needs --sampler grid, to repeat its cells, or --confirm, to train "
                f"finalists with {pluralize(settings.seeds, 'seeds')}. Add one of them"
            )
        return
    if settings.shares_training:
        raise InputError("--sampler grid trains each cell from scratch; leave --init shared out")
    if settings.warm_start is not None:
        raise InputError("--sampler grid does not learn from trials; leave --warm-start out")
