"""Check attention modules of others at the sites of configurations, before anything is trained."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from attention import Spec
from automl.base.errors import InputError
from automl.base.units import pluralize
from automl.config.runtime import Runtime
from automl.tasks import open_task
from automl.tasks.memo import remember
from backbones import Site, sites
from backbones.contract import check_contract, find_padded
from backbones.influence import is_causal
from backbones.site import unknown_site
from search.config import TrialConfig

MOST_OPTIONS = 4  # Options with ranges of numbers would make every draw a module of its own.


def check_attentions(configs: Iterable[TrialConfig], runtime: Runtime) -> list[tuple[Spec, Site]]:
    """Check each attention type that is not in the table, at each shape of its sites.

    Types of the table keep the contract by their tests. Equal modules at sites of one shape are checked once,
    and a type at one shape with at most `MOST_OPTIONS` sets of options.

    Args:
        configs: The configurations. Those without such types take no time.
        runtime: The device.

    Returns:
        An attention and a site of each type that was checked.

    Raises:
        InputError: A module breaks the contract. The message names type, site and what it did.
    """
    begun, checked = time.perf_counter(), dict[str, tuple[Spec, Site]]()
    tried: Counter[str] = Counter()
    for config in configs:
        for name, spec in config.model.placement.items():
            if not spec.is_foreign:
                continue
            site, *demands = _find_site(name, config, runtime)
            shape = [site.channels, site.resolution, site.layout, site.class_tokens, *demands]
            key = json.dumps([spec.to_json(), *shape], sort_keys=True)
            group = json.dumps([spec.type, *shape])
            if key in checked or tried[group] == MOST_OPTIONS:
                continue
            tried[group] += 1
            for check in check_contract(spec, site, padded=demands[0], causal=demands[1]):
                if not check.passed:
                    raise InputError(check.message)
            checked[key] = spec, site
    first = {spec.type: (spec, site) for spec, site in reversed(checked.values())}
    if first:
        names = ", ".join(sorted(spec.name for spec, _ in first.values()))
        duration = time.perf_counter() - begun
        print(f"checked   {names}: {pluralize(len(checked), 'module')} in {duration:.1f} s", file=sys.stderr)
    return list(first.values())


def _find_site(name: str, config: TrialConfig, runtime: Runtime) -> tuple[Site, bool, bool]:
    """Return a site of the plain model, whether its features are padded, and whether the model is causal."""
    plain = replace(config.change(model={"placement": {}}, seed=0), training=type(config.training)())

    def find() -> tuple[nn.Module, list[Site], frozenset[str], bool]:
        task = open_task(plain, runtime)
        model, example = task.model(), task.example(2)
        known = sites(model, example)
        return model, known, find_padded(model, known, example), is_causal(model, example)

    model, known, padded, causal = remember("sites with padding", [plain.to_json()], find)
    site = next((site for site in known if site.name == name), None)
    if site is None:
        raise unknown_site(model, name, known)
    return site, name in padded, causal
