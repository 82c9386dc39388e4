"""Spaces of vision transformers: which blocks, which stem, which size, and where attention goes in them.

Source: H. Touvron et al., Training data-efficient image transformers (2021), arXiv 2012.12877, table 9, for
the training of `deit`; H. Touvron et al., Three things everyone should know about Vision Transformers (2022),
arXiv 2203.09795, for parallel blocks, layer scale and the stem of convolutions. Attention goes after a block,
or takes the place of what mixes its tokens.
"""

from collections.abc import Mapping
from typing import Any

import optuna

from backbones import Placement, Site
from search import choices
from search.config import ImageData, ImageTraining, Model, TrialConfig
from search.image_spaces import places

KINDS = ("block", "layer-scale", "parallel", "parallel-layer-scale")
FACES = 168  # pixels

PUBLISHED: Mapping[str, Any] = {
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
TINY: Mapping[str, Any] = {"modules": 0, **PUBLISHED}  # DeiT-Ti
PLAIN: Mapping[str, Any] = {
    "block": "block",
    "stem": "patch",
    "pool": "token",
    "depth": 6,
    "embed_dim": 192,
    **TINY,
    "mixup": 0.0,
    "cutmix": 0.0,
    "policy": "none",
    "erasing": 0.0,
}


def deit(trial: optuna.Trial) -> TrialConfig:
    """DeiT-Ti as it was published, with attention in it."""
    options = {"drop_path": _drop_path(trial)}
    return TrialConfig(
        data=ImageData(source="folder", size=224),
        model=Model(backbone="vit", options=options, placement=_placement(trial, options, 224)),
        training=_training(trial, epochs=5),
    )


def vit(trial: optuna.Trial) -> TrialConfig:
    """Patches of 16 pixels."""
    return _free(trial, size=224, patch=16)


def faces(trial: optuna.Trial) -> TrialConfig:
    """Patches of 12 pixels, 14 a side."""
    return _free(trial, size=FACES, patch=12)


def _free(trial: optuna.Trial, *, size: int, patch: int) -> TrialConfig:
    width = trial.suggest_categorical("embed_dim", [96, 192, 384])
    options: dict[str, Any] = {
        "patch_size": patch,
        "embed_dim": width,
        "heads": width // 32 if width < 192 else width // 64,
        "depth": trial.suggest_categorical("depth", [4, 6, 8, 12]),
        "block": trial.suggest_categorical("block", KINDS),
        "stem": trial.suggest_categorical("stem", ["patch", "hmlp"]),
        "drop_path": _drop_path(trial),
        # Of class tokens and means the token is the published one; a mean lets every block have its sites.
        "pool": trial.suggest_categorical("pool", ["token", "mean"]),
    }
    if options["block"].endswith("layer-scale"):
        options["initial_scale"] = trial.suggest_float("initial_scale", 1e-6, 1e-1, log=True)
    if options["block"].startswith("parallel"):
        options["branches"] = 2
        options["depth"] //= 2  # as many layers of attention as in a row
    placement = _placement(trial, options, size, prefix=f"depth{options['depth']}.{options['pool']}.")
    return TrialConfig(
        data=ImageData(source="folder", size=size),
        model=Model(backbone="vit", options=options, placement=placement),
        training=_training(trial, epochs=5),
    )


def _placement(trial: optuna.Trial, options: Mapping[str, Any], size: int, prefix: str = "") -> Placement:
    """Up to three modules, all after blocks or all in the place of mixers."""
    shape = {key: value for key, value in options.items() if key not in ("drop_path", "initial_scale")}
    found = places("vit", size, shape, mixers=True)
    after = [site for site in found if site.name.count(".") == 1]
    chosen = [after[i] for i in choices.ascending(trial, len(after), most=3, prefix=prefix)]
    if not chosen:
        return {}
    replaces = trial.suggest_categorical("place", ["after", "mixer"]) == "mixer"
    return {
        (_mixer(found, site) if replaces else site).name: choices.attention(trial, i, site.channels)
        for i, site in enumerate(chosen, start=1)
    }


def _mixer(found: list[Site], block: Site) -> Site:
    """That of the block, of parallel ones the first."""
    return next(site for site in found if site.replaces and site.name.startswith(f"{block.name}."))


def _drop_path(trial: optuna.Trial) -> float:
    return round(trial.suggest_float("drop_path", 0.0, 0.3, step=0.05), 2)


def _training(trial: optuna.Trial, *, epochs: int) -> ImageTraining:
    return ImageTraining(
        epochs=epochs,
        optimizer="adamw",
        learning_rate=trial.suggest_float("learning_rate", 1e-4, 3e-3, log=True),
        weight_decay=trial.suggest_float("weight_decay", 1e-3, 3e-1, log=True),
        batch_size=trial.suggest_categorical("batch_size", [32, 64, 128]),
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


def papers() -> list[dict[str, Any]]:
    """The four kinds of blocks, and the stem of convolutions, without attention of ours."""
    scaled = {"initial_scale": 1e-4}
    return [{**PLAIN, "block": kind, **(scaled if kind.endswith("scale") else {})} for kind in KINDS[1:]] + [
        {**PLAIN, "stem": "hmlp"}
    ]


def deit_papers() -> list[dict[str, Any]]:
    """Decomposed attention in the place of the last mixers, and after the blocks of the middle."""
    sites = len([site for site in places("vit", 224) if site.name.count(".") == 1])
    kind = {"type1": "decomposed", "normalisation1": "softmax", "decomposed_heads1": 1, "reduction1": 1}
    return [
        {**TINY, "modules": 1, "site1": at, "place": place, **kind}
        for place, at in (("mixer", sites - 1), ("after", sites // 2))
    ]
