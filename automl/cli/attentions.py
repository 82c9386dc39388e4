"""Attention types as tables: all of them, their costs at the sites of a model, checks of their contract."""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from attention import ATTENTIONS, Spec
from attention.options import OptionValue
from attention.spec import TIMM_NAMES
from automl.base.errors import InputError
from automl.base.process import handle_signals
from automl.base.units import format_count
from automl.export.formats import find_missing_formats
from automl.task.subject import make_subject
from backbones import Site, sites
from backbones.contract import CHECKS, Check, check_contract, find_padded
from backbones.cost import attention_cost
from backbones.influence import is_causal
from backbones.insertion import build_module

MISFIT = "-"  # cell of a type that does not fit a site
IMPORT = 60  # longest import of an attention's file [s]


def sites_table(sites: Sequence[Site], types: Sequence[str] = tuple(ATTENTIONS)) -> Iterator[str]:
    """Yield the lines of the table: sites, and `parameters/MACs` of attention types with default options."""
    specs = [Spec(name).identified() for name in types]
    name, path = (max(26, *(len(getattr(site, key)) + 2 for site in sites)) for key in ("name", "path"))
    widths = [max(15, len(spec.name) + 2) for spec in specs]
    heading = f"{'site':{name}}{'module':{path}}{'channels':>9}{'stride':>7}{'size':>9}"
    yield heading + "".join(f"{spec.name:>{width}}" for spec, width in zip(specs, widths, strict=True))
    rows = [[_cost(spec, site) for spec in specs] for site in sites]
    for site, row in zip(sites, rows, strict=True):
        resolution = "x".join(map(str, site.resolution))
        line = f"{site.name:{name}}{site.path:{path}}{site.channels:>9}{site.stride:>7}{resolution:>9}"
        yield line + "".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
    yield "cells: parameters / multiply-accumulates for one input, with default options"
    if any(MISFIT in row for row in rows):
        yield f"{MISFIT}: the default options do not fit the site"


def _cost(spec: Spec, site: Site) -> str:
    try:
        with torch.random.fork_rng(devices=[]):
            build_module(spec, site)
        cost = attention_cost(spec, site)
    except InputError:
        return MISFIT
    return f"{format_count(cost.parameters)}/{format_count(cost.macs)}"


def describe_attentions() -> list[dict[str, Any]]:
    """Return each type of the table in JSON's types."""
    return [
        {
            "type": attention.name,
            "cost": "counted" if attention.cost is None else "formula",
            "source": attention.source,
            "options": {
                name: {"default": option.default, "choices": list(option.allowed)}
                for name, option in attention.options.items()
            },
        }
        for attention in ATTENTIONS.values()
    ]


def attentions_table() -> Iterator[str]:
    """Yield the lines of the table. The options of a type follow it, with defaults and allowed values."""
    yield f"{'type':14}{'cost':9}source"
    for described in describe_attentions():
        yield f"{described['type']:14}{described['cost']:9}{described['source']}"
        for name, option in described["options"].items():
            choices = f" ({', '.join(map(str, option['choices']))})" if option["choices"] else ""
            yield f"  {name}={option['default']}{choices}"
    yield f"timm's modules: timm:NAME; NAME is {', '.join(TIMM_NAMES)}"
    yield "a class of your own: file.py:Class or package.module:Class; automl check-attention checks it"


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
    spec = load_spec(attention, options or {})
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


class _Cut(BaseException):
    """An import takes too long. The code that is imported may catch `Exception`, but not this."""


def load_spec(name: str, options: Mapping[str, OptionValue]) -> Spec:
    """Return the spec of an attention, whose file or package is imported in at most `IMPORT` seconds.

    Only the main thread can end a longer import.
    """

    def stop(_: int, frame: FrameType | None) -> None:
        line = f", at line {frame.f_lineno} of {frame.f_code.co_filename}" if frame else ""
        raise _Cut(
            f"{name} was still being imported after {IMPORT} s{line}. Move what takes long into a function"
        )

    with handle_signals({signal.SIGALRM: stop}) as can_stop:
        if can_stop:
            signal.alarm(IMPORT)
        try:
            return Spec(name, options).identified()
        except _Cut as cut:
            raise InputError(str(cut)) from None
        finally:
            if can_stop:
                signal.alarm(0)


def check_table(result: AttentionCheck) -> Iterator[str]:
    """Yield the lines of the table, the messages of failures, and the formats of an export."""
    names = [
        f"{first} + {len(others)} more" if others else first
        for first, *others in (site.sites for site in result.sites)
    ]
    wide, shape = max(map(len, (*names, "site"))), max(len(site.shape) for site in result.sites)
    yield f"{'site':{wide}}  {'shape':{shape}}  {'  '.join(CHECKS)}  {'ms':>5}"
    for name, site in zip(names, result.sites, strict=True):
        passed = {check.name: "ok" if check.passed else "FAILS" for check in site.checks}
        cells = "  ".join(f"{passed.get(check, '-'):{len(check)}}" for check in CHECKS)
        yield f"{name:{wide}}  {site.shape:{shape}}  {cells}  {site.milliseconds:5.0f}"
    yield from dict.fromkeys(c.message for site in result.sites for c in site.checks if not c.passed)
    if result.missing is not None:
        for file, reason in result.missing.items():
            yield f"an export leaves out {file}: {reason}"
        if not result.missing:
            yield "an export has all formats"
