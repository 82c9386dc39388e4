"""Check the contract of an attention type at the sites of a model."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attention import Spec
from attention.options import OptionValue
from automl.export.formats import find_missing_formats
from automl.task.subject import make_subject
from backbones import Site, sites
from backbones.contract import Check, check_contract, find_padded
from backbones.influence import is_causal


@dataclass(frozen=True, kw_only=True)
class SiteCheck:
    """Result of the contract check at all sites of one shape.

    Attributes:
        shape: Channels and resolution, such as `64 x 8 x 8`.
        milliseconds: Duration of the check [ms].
    """

    sites: Sequence[str]
    shape: str
    checks: Sequence[Check]
    milliseconds: float

    @property
    def passed(self) -> bool:
        """Return whether all checks passed."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class AttentionCheck:
    """Result of the contract check of an attention type in a model.

    Attributes:
        sites: Results for each shape.
        missing: The reason for each format that an export leaves out. None if no module could be tried.
    """

    attention: str
    sites: Sequence[SiteCheck]
    missing: dict[str, str] | None

    @property
    def passed(self) -> bool:
        """Return whether the attention keeps the contract at all sites."""
        return all(site.passed for site in self.sites)


def check_attention(
    attention: str,
    backbone: str = "xresnet18",
    *,
    options: Mapping[str, OptionValue] | None = None,
    backbone_options: Mapping[str, Any] | None = None,
    size: int | None = None,
    task: str | None = None,
) -> AttentionCheck:
    """Check the contract of an attention module at every site of a model.

    Args:
        attention: The attention: `file.py:Class`, `timm:NAME` or a type's name.
        backbone: The model, as for `measure_cost`.
        options: Options of the attention.
        backbone_options: Options of the model.
        size: The side of images in pixels, height of stereo pairs, steps of sequences, or tokens of texts.
        task: The task. With `detection`, the model is a Mask R-CNN on the backbone.

    Returns:
        The checks at the sites of each shape, and the formats that an export leaves out.

    Raises:
        InputError: The attention, the model or an option is invalid.

    Example:
        >>> import automl
        >>> automl.check_attention("ssa", size=32, backbone_options={"width": 0.25}).passed
        True
    """
    subject = make_subject(backbone, size=size, options=backbone_options, task=task)
    spec = Spec(attention, options or {}).identified()
    model, example = subject.build(), subject.example(2)
    known = sites(model, example)
    padded, causal = find_padded(model, known, example), is_causal(model, example)
    groups: dict[tuple[object, ...], list[Site]] = {}  # sites of one shape are checked once
    for site in known:
        shape = (site.channels, site.resolution, site.layout, site.class_tokens, site.name in padded)
        groups.setdefault(shape, []).append(site)
    results = []
    for group in groups.values():
        begun = time.perf_counter()
        checks = check_contract(spec, group[0], padded=group[0].name in padded, causal=causal)
        results.append(
            SiteCheck(
                sites=[site.name for site in group],
                shape="x".join(map(str, (group[0].channels, *group[0].resolution))),
                checks=checks,
                milliseconds=1e3 * (time.perf_counter() - begun),
            )
        )
    tried = next((sites[0] for sites, r in zip(groups.values(), results, strict=True) if r.passed), None)
    missing = None if tried is None else find_missing_formats(spec, tried)
    return AttentionCheck(attention=str(spec), sites=results, missing=missing)
