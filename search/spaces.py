"""The search spaces by name: those of the tasks, the grids of `automl studies`, and user-defined ones."""

from collections.abc import Iterable, Mapping
from importlib import import_module

from attention import InputError
from backbones.loading import load_object
from search import study_spaces
from search.config.tasks import TASKS, TaskSpec, registered_specs
from search.space import Space, SpaceFunction, space_name, without_attention


def _spaces_of(specs: Iterable[TaskSpec]) -> Mapping[str, Space]:
    modules = [import_module(module) for spec in specs for module in spec.spaces]
    return {space.name: space for module in modules for space in module.SPACES}


SPACES = _spaces_of(TASKS.values())

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


def registered_spaces() -> Mapping[str, Space]:
    """Return the spaces of registered tasks, by name."""
    return _spaces_of(spec for _, spec in registered_specs())


def load_space(
    given: "str | SpaceFunction | Space", backbone: str | None = None, size: int | None = None
) -> Space:
    """The space `given`: a name of the table, `file.py:function`, `package.module:function`, or a function.

    backbone: in the place of the space's own, for images of `size` pixels.

    A user-defined function may have the attributes of a Space: `baseline`, `published` (a list), `plain`,
    `as_baseline` and `with_backbone`; without them trial 0 and the trials that tune the baseline draw with
    `modules` = 0. Raises InputError when there is no such space or it cannot be loaded.
    """
    if backbone is not None:
        space = load_space(given)
        if space.with_backbone is None:
            those = [other.name for other in SPACES.values() if other.with_backbone]
            raise InputError(
                f"space {space.name!r} has backbones of its own and takes no --backbone; spaces that do are "
                f"{', '.join(those)}"
            )
        return space.with_backbone(backbone, size)
    name = space_name(given)
    if isinstance(given, str):
        named = {**SPACES, **STUDY_SPACES}
        if name not in named and ":" not in name:
            named |= registered_spaces()
        if name in named:
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
