"""The search spaces by name: those of the tasks, the grids of `automl studies`, and user-defined ones."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from automl.base.errors import InputError
from automl.base.lazy import LazyTable, contributed, isolated
from automl.base.loading import load_object
from search.config.tasks import TASKS, TaskSpec, registered_specs
from search.space import Space, SpaceFunction, space_name, without_attention


def _spaces_of(tasks: Iterable[tuple[str, TaskSpec]]) -> Mapping[str, Space]:
    spaces: dict[str, Space] = {}
    for name, spec in tasks:
        with isolated(name):
            modules = [import_module(module) for module in spec.spaces]
            spaces |= {space.name: space for module in modules for space in module.SPACES}
    return spaces


# The spaces of all tasks, built in or installed. The tasks are imported on first use.
SPACES = LazyTable(lambda: _spaces_of(TASKS.items()))


@cache
def study_grids() -> Mapping[str, Space]:
    """Return the grids of published experiments, by name."""
    return contributed("grids")


def registered_spaces() -> Mapping[str, Space]:
    """Return the spaces of registered tasks, by name."""
    return _spaces_of(registered_specs())


def load_space(
    reference: "str | SpaceFunction | Space",
    backbone: str | None = None,
    size: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Space:
    """Load a search space.

    A user-defined function may have the attributes of a `Space`: `baseline`, `published` (a list), `plain`,
    `as_baseline` and `with_backbone`. Without them, trial 0 and the trials that tune the baseline draw with
    `modules` = 0.

    Args:
        reference: A name in `SPACES`, `file.py:function`, `package.module:function`, a function or a `Space`.
        backbone: A backbone that replaces the space's own.
        size: The side of the images in pixels, for `backbone`.
        options: The options of `backbone`.

    Raises:
        InputError: The space is unknown or cannot be loaded, or takes no `backbone`.
    """
    if backbone is not None:
        space = load_space(reference)
        if space.with_backbone is None:
            names = [other.name for other in SPACES.values() if other.with_backbone]
            raise InputError(
                f"space {space.name!r} has backbones of its own and takes no --backbone; spaces that do are "
                f"{', '.join(names)}"
            )
        return space.with_backbone(backbone, size, options)
    name = space_name(reference)
    if isinstance(reference, str):
        named = {**SPACES, **study_grids()}  # which are not listed
        if name not in named and ":" not in name:
            named |= registered_spaces()
        if name in named:
            return named[name]
    draw = load_object("space", "function", name, SPACES) if isinstance(reference, str) else reference
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
