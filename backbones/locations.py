"""Names of the positions in a model at which a module can be inserted.

A feature map has one name. If norms, activations and dropout follow a layer, the position is after the last
of them. Logits have no name, since a module would only change predictions.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from math import prod

from torch import nn

from attention import Layout
from backbones.trace_record import Trace


@dataclass(frozen=True)
class Map:
    """Shape of a feature map.

    Attributes:
        layout: Order of the dimensions, as in `Site`.
        resolution: Number of positions along each dimension.
    """

    channels: int
    layout: Layout
    resolution: tuple[int, ...]


@dataclass(frozen=True)
class Location:
    """Submodule at which a module is inserted.

    Attributes:
        replaces: True if the module replaces it.
    """

    path: str
    replaces: bool = False


def locate(model: nn.Module, run: Trace, maps: Mapping[str, Map]) -> dict[str, Location]:
    """Return the locations by name, in the order in which their submodules return.

    `run` is the trace of the model, and `maps` are the feature maps that submodules return, by path.
    """
    logits = run.flow.find_logits()
    features = {
        path: feature_map for path, feature_map in maps.items() if run.outputs[path].number not in logits
    }
    residual = _name_residual(model, run, features)
    return residual or {path: Location(path) for path in _list_ends(run, features, features)}


def _list_ends(run: Trace, maps: Mapping[str, Map], paths: Iterable[str]) -> list[str]:
    """Return the paths whose maps do not become another one of the same shape by norms and activations."""
    paths = list(paths)

    def is_continued(path: str, later: str) -> bool:
        number, output = run.outputs[path].number, run.outputs[later]
        if maps[path] != maps[later] or number is None or output.number is None:
            return False
        return run.flow.is_continued(number, output.number, output.end)

    return [
        path for i, path in enumerate(paths) if not any(is_continued(path, later) for later in paths[i + 1 :])
    ]


def _name_residual(model: nn.Module, run: Trace, maps: Mapping[str, Map]) -> dict[str, Location]:
    """Return `stem`, and for each residual block its mixers of tokens, its branches and its own output."""
    branches: dict[str, list[tuple[str, bool]]] = {}
    mixers: dict[str, list[str]] = {}
    # Whether the branches of a block mix tokens. In a transformer some do and some do not.
    kinds: dict[str, set[bool]] = {}
    for addition in run.additions:
        block = addition.path
        inside = [path for path in addition.branch.makers if path.startswith(f"{block}.")]
        # A branch that no single submodule returns, such as parts joined by `torch.cat`, has no site.
        joins = addition.is_residual and block in maps and addition.branch.shape == run.outputs[block].shape
        if block in maps and (inside or joins):
            # Take the outermost submodule that ran once, since a block may have one dropout for all its
            # branches.
            outermost = [path for path in inside if path in maps][-1:]
            branches.setdefault(block, []).extend((path, bool(addition.mixers)) for path in outermost)
            kinds.setdefault(block, set()).add(bool(addition.mixers))
            # A module can replace a mixer if only a map like its input is used.
            same = [path for path in addition.mixers if maps.get(path) == maps[block]]
            alone = [path for path in same if not run.outputs[path].uses_rest]
            fitting = (path for path in alone if run.takes.get(path) == run.outputs[path].shape)
            mixers.setdefault(block, []).extend(fitting)
    transformers = {block for block, mixes in kinds.items() if len(mixes) == 2}
    names: dict[str, Location] = {}
    if branches:
        stem = run.sources.get(next(iter(branches)))
        if stem is not None and stem in maps:
            names["stem"] = Location(stem)

    def stage(block: str) -> tuple[str, tuple[int, ...]]:
        return block.rpartition(".")[0], maps[block].resolution

    for i, (_, blocks) in enumerate(groupby(branches, key=stage), start=1):
        for j, block in enumerate(blocks, start=1):
            name = f"stage{i}.block{j}"
            # torch's own layer reads attributes of its attention, which cannot be replaced.
            own = isinstance(
                model.get_submodule(block), nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
            )
            if block in transformers and not own:
                for label, path in _numbered([("mixer", path) for path in mixers[block]]):
                    names[f"{name}.{label}"] = Location(path, replaces=True)
            kind = ("mlp.branch", "attention.branch") if block in transformers else ("branch", "branch")
            for label, path in _numbered([(kind[mixes], path) for path, mixes in branches[block]]):
                names[f"{name}.{label}"] = Location(path)
            names[name] = Location(block)
    # A block may be the branch of another, and a branch may be added twice. A location keeps only its first
    # name.
    first = {location: name for name, location in reversed(names.items())}
    names = {name: location for name, location in names.items() if first[location] == name}
    if branches:
        names |= {path: Location(path) for path in _list_beside(model, run, maps, branches)}
    order = list(run.outputs)
    return dict(sorted(names.items(), key=lambda item: order.index(item[1].path)))


def _list_beside(model: nn.Module, run: Trace, maps: Mapping[str, Map], blocks: Collection[str]) -> list[str]:
    """Return the outermost multi-layer modules after the stem without residual blocks in or around them.

    Examples are blocks of a stage that are joined in another way, and those of a MobileViT, whose residual
    blocks process patches. In a decoder, whose maps become larger, they are its blocks.
    """
    order = list(run.outputs)
    begin = min(order.index(block) for block in blocks)
    apart = {
        path: maps[path]
        for path in order[begin:]
        if path in maps
        and any(True for _ in model.get_submodule(path).children())
        and path not in blocks
        and not any(_is_inside(path, block) or _is_inside(block, path) for block in blocks)
    }
    decoders = {path for path in apart if _is_decoder(run, path, apart)}
    return _list_ends(run, maps, _list_outermost(apart, decoders))


def _list_outermost(paths: Iterable[str], open_paths: Collection[str] = ()) -> list[str]:
    """Return the paths that lie in no other one, except in those of `open_paths`."""
    around = set(paths) - set(open_paths)
    return [path for path in paths if not any(_is_inside(path, other) for other in around)]


def _is_inside(path: str, module: str) -> bool:
    return path.startswith(f"{module}.")


def _is_decoder(run: Trace, path: str, maps: Mapping[str, Map]) -> bool:
    """Return whether a module in the one at `path` computes a larger map from the map of another one."""
    # A map that its own module has pooled, as in a pyramid pooling, does not count.
    inner = [path]
    while len(inner) == 1:  # A module may only wrap another one.
        inner = _list_outermost([other for other in maps if _is_inside(other, inner[0])])
    for before, after in combinations(inner, 2):
        source, number = run.outputs[before].number, run.outputs[after].number
        smaller, larger = (prod(maps[p].resolution) for p in (before, after))
        shape = run.takes.get(before, ())[1:]  # of the map that it takes, if it does
        channels = shape[0 if maps[before].layout == "BC*" else -1] if len(shape) > 1 else 0
        grows = (prod(shape) // channels if channels else 0) <= smaller < larger
        if grows and source is not None and number is not None and run.flow.is_source(source, number):
            return True
    return False


def _numbered(labelled: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Append a number to each label that occurs more than once."""
    labels = [label for label, _ in labelled]
    for i, (label, path) in enumerate(labelled):
        number = labels[: i + 1].count(label) if labels.count(label) > 1 else ""
        yield f"{label}{number}", path
