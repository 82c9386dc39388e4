"""Spaces of vision transformers: blocks, stem, size and attention.

Source: H. Touvron et al., Training data-efficient image transformers (2021), arXiv 2012.12877, table 9, for
the training of `deit`; H. Touvron et al., Three things everyone should know about Vision Transformers (2022),
arXiv 2203.09795, for parallel blocks, layer scale and the stem of convolutions. Modules follow a block or
replace its token mixer. `published` compares blocks only, on faces.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import optuna

from attention.spec import Placement
from automl.tasks.image_classification import ImageData, ImageTraining
from search import choices
from search.config import Model, TrialConfig
from search.space import Space

KINDS = ("block", "layer-scale", "parallel", "parallel-layer-scale")
BATCHES, FEW = (32, 64, 128), (16, 32, 64)  # FEW is for a few hundred images of faces
DEIT: Mapping[str, Any] = {"embed_dim": 192, "depth": 12, "block": "block", "pool": "token"}  # DeiT-Ti

_PUBLISHED: Mapping[str, Any] = {
    "modules": 0,
    "learning_rate": 5e-4,
    "weight_decay": 0.05,
    "batch_size": 64,
    "drop_path": 0.1,
    "mixup": 0.8,
    "cutmix": 1.0,
    "policy": "rand",
    "erasing": 0.25,
    "layer_decay": 1.0,
    "clip": 0.0,
    "average": 0.0,
    "label_smoothing": 0.1,
}
# Without augmentation that needs more epochs than a short training has.
_PLAIN: Mapping[str, Any] = {"mixup": 0.0, "cutmix": 0.0, "policy": "none", "erasing": 0.0}
_SHAPE: Mapping[str, Any] = {"block": "block", "stem": "patch", "pool": "token", "depth": 6, "embed_dim": 192}

DEIT_BASELINE = {**_PUBLISHED, "learning_rate": 5e-4 * 64 / 512}  # scaled to the batch size as in DeiT
VIT_BASELINE = {**_SHAPE, **_PUBLISHED, **_PLAIN}
FACES_BASELINE = {**VIT_BASELINE, "batch_size": 32}
BLOCKS_BASELINE: Mapping[str, Any] = {"block": "block", "optimizer": "adam"}
BLOCKS_TRAINING = ImageTraining(
    epochs=25,
    batch_size=32,
    optimizer="adam",
    learning_rate=3e-4,
    weight_decay=0.01,
    decayed="all",
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    schedule="cosine",
    label_smoothing=0.0,
)
MOST_BRANCHES = 4  # in parallel blocks


def deit(trial: optuna.Trial, kinds: Sequence[str] = choices.TYPES) -> TrialConfig:
    """Draw DeiT-Ti as published, with attention in it."""
    options = {"drop_path": _drop_path(trial)}
    return TrialConfig(
        data=ImageData(source="folder", size=224),
        model=Model(backbone="vit", options=options, placement=_placement(trial, DEIT, kinds)),
        training=_training(trial, BATCHES),
    )


def vit(trial: optuna.Trial, kinds: Sequence[str] = choices.TYPES) -> TrialConfig:
    """Draw transformers with patches of 16 pixels."""
    return _free(trial, size=224, patch=16, batches=BATCHES, kinds=kinds)


def faces(trial: optuna.Trial, kinds: Sequence[str] = choices.TYPES) -> TrialConfig:
    """Draw transformers with patches of 12 pixels, 14 a side."""
    return _free(trial, size=168, patch=12, batches=FEW, kinds=kinds)


def _free(
    trial: optuna.Trial, *, size: int, patch: int, batches: Sequence[int], kinds: Sequence[str]
) -> TrialConfig:
    width = trial.suggest_categorical("embed_dim", [96, 192, 384])
    options: dict[str, Any] = {
        "patch_size": patch,
        "embed_dim": width,
        "heads": max(3, width // 64),
        "depth": trial.suggest_categorical("depth", [4, 6, 8, 12]),
        "block": trial.suggest_categorical("block", KINDS),
        "stem": trial.suggest_categorical("stem", ["patch", "hmlp"]),
        "pool": trial.suggest_categorical("pool", ["token", "mean"]),
        "drop_path": _drop_path(trial),
    }
    if options["block"].endswith("layer-scale"):
        options["initial_scale"] = trial.suggest_float("initial_scale", 1e-6, 1e-1, log=True)
    if options["block"].startswith("parallel"):
        options["branches"] = trial.suggest_int("branches", 1, MOST_BRANCHES)
        if not trial.suggest_categorical("keep_depth", [False, True]):  # keep the number of layers
            options["depth"] = max(2, options["depth"] // options["branches"])
    placement = _placement(trial, options, kinds, prefix=f"{len(sites_after_blocks(options))}blocks.")
    return TrialConfig(
        data=ImageData(source="folder", size=size),
        model=Model(backbone="vit", options=options, placement=placement),
        training=_training(trial, batches),
    )


def published(trial: optuna.Trial) -> TrialConfig:
    """Compare the kinds of blocks with the same hyperparameters, on faces of 168 pixels.

    Settings that the published experiment prints are fixed: width 192, depth 12, 3 heads, an MLP of 4 times
    the width, biases of queries, keys and values, layer norms with 1e-6, layer scale from 1e-4, 25 epochs, a
    cosine from 3e-4, weight decay 0.01 of all parameters, betas 0.9 and 0.999. Drawn are the kind of block,
    the branches of parallel blocks (whose depth stays 12), and Adam or AdamW. The experiment prints neither
    the batch size nor the side of the patches. Here they are 32 and 12 pixels, the multiple of 4 nearest to
    DeiT's 16 that divides 168. The learning rate falls at each step here, and after each epoch there.
    """
    block = trial.suggest_categorical("block", KINDS)
    options: dict[str, Any] = {**DEIT, "heads": 3, "mlp_ratio": 4.0, "patch_size": 12, "block": block}
    if block.endswith("layer-scale"):
        options["initial_scale"] = 1e-4
    if block.startswith("parallel"):
        options["branches"] = trial.suggest_int("branches", 1, MOST_BRANCHES)
    optimizer = trial.suggest_categorical("optimizer", ["adam", "adamw"])
    return TrialConfig(
        data=ImageData(source="folder", size=168),
        model=Model(backbone="vit", options=options),
        training=replace(BLOCKS_TRAINING, optimizer=optimizer),  # type: ignore[arg-type]
    )


def published_blocks() -> list[dict[str, Any]]:
    """Return parameters of the other kinds, with two branches as in the published default."""
    kinds = [{**BLOCKS_BASELINE, "block": kind} for kind in KINDS[1:]]
    return [{**kind, "branches": 2} if kind["block"].startswith("parallel") else kind for kind in kinds]


def as_plain_block(config: TrialConfig) -> TrialConfig:
    """Return the configuration with plain blocks in a row."""
    kept = {k: v for k, v in config.model.options.items() if k not in ("initial_scale", "branches")}
    return config.change(model={"options": {**kept, "block": "block"}, "placement": {}})


def sites_after_blocks(options: Mapping[str, Any]) -> list[str]:
    """Return the sites after blocks. A class token skips attention after the last block, so it is no site."""
    return [f"stage1.block{i}" for i in range(1, options["depth"] + (options["pool"] == "mean"))]


def mixer_site(block: str, options: Mapping[str, Any]) -> str:
    """Return the site of a block's token mixer; of a parallel block, that of the first branch."""
    return f"{block}.mixer{1 if options['block'].startswith('parallel') else ''}"


def _placement(
    trial: optuna.Trial, options: Mapping[str, Any], kinds: Sequence[str], prefix: str = ""
) -> Placement:
    """Draw up to three modules, all after blocks or all instead of mixers."""
    sites = sites_after_blocks(options)
    chosen = [sites[i] for i in choices.ascending(trial, len(sites), most=3, prefix=prefix)]
    if chosen and trial.suggest_categorical("place", ["after", "mixer"]) == "mixer":
        chosen = [mixer_site(site, options) for site in chosen]
    width = options["embed_dim"]
    return {site: choices.attention(trial, i, width, kinds) for i, site in enumerate(chosen, start=1)}


def _drop_path(trial: optuna.Trial) -> float:
    return round(trial.suggest_float("drop_path", 0.0, 0.3, step=0.05), 2)


def _training(trial: optuna.Trial, batches: Sequence[int]) -> ImageTraining:
    return ImageTraining(
        epochs=5,
        optimizer="adamw",
        learning_rate=trial.suggest_float("learning_rate", 3e-5, 3e-3, log=True),
        weight_decay=trial.suggest_float("weight_decay", 1e-3, 3e-1, log=True),
        batch_size=trial.suggest_categorical("batch_size", batches),
        schedule="warmup-cosine",
        mixup=round(trial.suggest_float("mixup", 0.0, 0.8, step=0.2), 1),
        cutmix=trial.suggest_categorical("cutmix", [0.0, 1.0]),
        policy=trial.suggest_categorical("policy", ["none", "trivial", "rand"]),  # type: ignore[arg-type]
        erasing=trial.suggest_categorical("erasing", [0.0, 0.25]),
        layer_decay=trial.suggest_categorical("layer_decay", [0.75, 0.9, 1.0]),
        clip=trial.suggest_categorical("clip", [0.0, 1.0]),
        average=trial.suggest_categorical("average", [0.0, 0.99, 0.999]),
        label_smoothing=round(trial.suggest_float("label_smoothing", 0.0, 0.2, step=0.05), 2),
    )


def papers(baseline: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return parameters of the kinds of blocks and of the stem of convolutions, without attention."""
    kinds = [{**baseline, "block": kind} for kind in KINDS[1:]]
    scaled = [{**kind, "initial_scale": 1e-4} if kind["block"].endswith("scale") else kind for kind in kinds]
    scaled = [
        {**kind, "branches": 2, "keep_depth": False} if kind["block"].startswith("parallel") else kind
        for kind in scaled
    ]
    return [*scaled, {**baseline, "stem": "hmlp"}]


def deit_papers() -> list[dict[str, Any]]:
    """Return parameters of decomposed attention after a middle block, and instead of a late mixer."""
    kind = {"type1": "decomposed", "normalisation1": "softmax", "decomposed_heads1": 1, "reduction1": 1}
    return [
        {**DEIT_BASELINE, "modules": 1, "site1": index, "place": position, **kind}
        for position, index in (("after", 5), ("mixer", 10))
    ]


SPACES = (
    Space(
        name="vit",
        draw=vit,
        baseline=VIT_BASELINE,
        free=partial(papers, VIT_BASELINE),
        summary="vision transformers: kind of block, stem, size, attention; --data PHOTOS, 224 px",
    ),
    Space(
        name="faces",
        draw=faces,
        baseline=FACES_BASELINE,
        free=partial(papers, FACES_BASELINE),
        summary="as vit with patches of 12 pixels; --data FACES, one folder per person, at 168 px",
    ),
    Space(
        name="vit-published",
        draw=published,
        baseline=BLOCKS_BASELINE,
        free=published_blocks,
        plain={"block": "block"},
        as_baseline=as_plain_block,
        summary="kinds of transformer blocks as published, 25 epochs; --data FACES, 168 px",
    ),
    Space(
        name="deit",
        draw=deit,
        baseline=DEIT_BASELINE,
        free=deit_papers,
        summary="attention in DeiT-Ti, with its training; --data PHOTOS, 224 px",
    ),
)
