"""The formats that an export leaves out because of an attention module, known before anything is trained."""

import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

from attention import Spec
from automl.export.formats import bake, save_programs
from automl.tasks.deployment import MODEL, Deployment
from backbones import Site
from backbones.insertion import build_module
from backbones.site import features


def find_missing_formats(spec: Spec, site: Site) -> dict[str, str]:
    """Export a module alone, as an export does it with the whole model.

    Args:
        spec: The attention.
        site: A site where it keeps its contract.

    Returns:
        The reason for each file that an export leaves out.
    """
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as scratch:
        module = build_module(spec, site)
        nn.init.ones_(module.gamma)
        bake(module)
        deployment = Deployment(module=module, inputs={"x": features(site, 2)}, outputs=["y"])
        with warnings.catch_warnings(action="ignore"):
            return save_programs(Path(scratch), MODEL, deployment)
