"""The network with the modules of the winner or the best trial in it: a box for each stage with its sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from automl.report import style
from automl.report.read import SearchData
from search.config import TrialConfig


@dataclass(frozen=True, kw_only=True)
class Place:
    """A site, or a layer of a decoder.

    Attributes:
        name: Its name within the stage.
        kind: The type of its module, the kind of the layer, or an empty text.
        colour: The colour of the kind. Empty without a module.
        about: Its whole name and module in words.
    """

    name: str
    kind: str
    colour: str
    about: str


@dataclass(frozen=True, kw_only=True)
class Network:
    """A model with its modules.

    Attributes:
        title: Whose modules they are, in a sentence.
        stages: The places in each stage, in their order.
    """

    title: str
    stages: Mapping[str, Sequence[Place]]


def network(search: SearchData) -> Network | None:
    """Return the network of the winner, or else of the best trial. None if that has no modules.

    Sites are those that trials used, and the layers of a decoder all that it has.
    """
    whose, config = _chosen(search)
    if config is None or not config.model.placement:
        return None
    model = config.model
    marks = style.colours_and_shapes(spec.name for spec in model.placement.values())
    colours = {kind: colour for kind, (colour, _) in marks.items()}
    if ":" not in model.backbone and model.kinds:
        layers = {
            str(i): [Place(name="", kind=kind, colour=colours.get(kind, ""), about=f"layer {i}: {kind}")]
            for i, kind in enumerate(model.kinds, 1)
        }
        return Network(title=f"{whose}: the kind of each layer.", stages=layers)
    alike = [t.config.model for t in search.trials if t.config.model.backbone == model.backbone]
    sites = {site for other in alike for site in other.placement}
    stages: dict[str, list[Place]] = {}
    for site in sorted(sites | model.placement.keys(), key=_natural_order):
        stage, _, name = site.partition(".")
        spec = model.placement.get(site)
        kind = spec.name if spec else ""
        place = Place(name=name, kind=kind, colour=colours.get(kind, ""), about=f"{site}: {spec or 'none'}")
        stages.setdefault(stage, []).append(place)
    return Network(title=f"{whose}: its modules among the sites that trials used.", stages=stages)


def _chosen(search: SearchData) -> tuple[str, TrialConfig | None]:
    verdict = search.verdicts[-1] if search.verdicts else None
    if verdict and verdict.complete and verdict.leader is not None:
        whose = "The winner" if verdict.winner else "The leading finalist, which is not shown to be better"
        return whose, verdict.leader.config
    if search.best is None:
        return "", None
    return f"The best trial, {search.best.number}, not confirmed", search.best.config


def _natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `block10` after `block9`, and a branch before its block."""
    parts = []
    for part in name.split("."):
        letters = part.rstrip("0123456789")
        number = part[len(letters) :]
        parts.append((0, int(number) if number else -1, letters))
    # `stage1.block2.branch` comes before `stage1.block2`: the longer one is inside.
    return [*parts, (1, 0, "")]
