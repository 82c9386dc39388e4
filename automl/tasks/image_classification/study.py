"""Published comparisons of classifiers of images.

Sources: SimpleSelfAttention, github.com/sdoria/SimpleSelfAttention; Z. Shen et al., Efficient Attention
(2018), arXiv 1812.01243; H. Touvron et al. (2022), arXiv 2203.09795.

`reality-check` is an experiment of this project: `COLUMNS` are its tasks, with the plain model of each, and
`ROWS` are modules of this package and of timm with the places of their papers. Two are free controls.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import optuna

from attention.spec import Spec
from automl.task.published_study import read_studies
from automl.tasks.image_classification import ImageData, ImageTraining, vit_space
from automl.tasks.image_classification.space import LOOKUP, list_sites, list_stage_sites
from search.config import Model, TrialConfig
from search.grid import SMALL, decomposed, grid
from search.space import Space

if TYPE_CHECKING:
    from backbones.site import Site

PHOTOS = "-photos"  # suffix of a small form on the user's photographs, `form_on_data` in studies.toml
RATES = (1e-3, 3e-3, 5e-3, 8e-3, 1e-2, 12e-3, 14e-3)  # learning rates of the published sweep
SSA_SITE = "stage1.block2.branch"
PLAIN, SSA = "xresnet18", "xresnet18 + ssa"
RESNET = "torchvision:resnet50"
# Kinds of blocks by the classes of the published code, which have layer scale unless init_values is 0.
BLOCKS: Mapping[str, str] = {
    "Block = Layer_scale_init_Block": vit_space.KINDS[1],
    "Block, init_values=0": vit_space.KINDS[0],
    "ParallelBlock = ParallelLayerScaleInitBlock": vit_space.KINDS[3],
    "ParallelBlock, init_values=0": vit_space.KINDS[2],
}

# Where papers have their modules. `BRANCHES`: in each residual block, before the addition. The others are the
# last site of a stage, or in its last branch. `ENDS`: at the end of each stage, for modules without a paper.
BRANCHES, ENDS = "branches", "ends of stages"
FIRST, FIRST_END, MIDDLE, LAST = "stage1 branch", "stage1", "third stage", "last stage"
NOTHING, OWN = "plain", "own"
BLOCK = "automl.tasks.image_classification.one_block:Block"
IN_BRANCHES = "se ese eca ceca cbam lcbam gc gca coord scoord ela strip sk splat"  # of timm
ROWS: Mapping[str, str] = {
    **dict.fromkeys(("ssa", "ssa-sym", "sagan"), FIRST),
    **{"decomposed": MIDDLE, "multihead": LAST},
    **dict.fromkeys((f"timm:{name}" for name in IN_BRANCHES.split()), BRANCHES),
    **{"timm:nl": MIDDLE, "timm:lambda": LAST, "timm:bottleneck": LAST, "timm:halo": FIRST},
    **{"conv1x1": FIRST, BLOCK: FIRST_END},
}
SMALL_ROWS: Mapping[str, str] = {name: ROWS[name] for name in ("ssa", "timm:se", "conv1x1")}


def sites_of(config: TrialConfig) -> dict[str, "Site"]:
    """Return the sites of the model of `config` by name, in their order."""
    assert isinstance(config.data, ImageData)
    sites = list_sites(config.model.backbone, config.data.size, config.model.options)
    return {site.name: site for site in sites}


def placement(config: TrialConfig, module: str, where: str) -> dict[str, Spec]:
    """Return the placement of a module at a place of `ROWS`, or at the `ENDS`, in the model of `config`."""
    names = [*sites_of(config)]
    if where == BRANCHES:
        chosen = [name for name in names if name.endswith("branch")]
    else:
        ends: dict[str, dict[bool, str]] = {}  # the last site of each stage, and the last in a branch
        for name in names:
            if name.startswith("stage"):
                ends.setdefault(name.partition(".")[0], {})[name.endswith("branch")] = name
        stages = list(ends)
        place = {MIDDLE: stages[:3][-1:], LAST: stages[-1:], ENDS: stages}.get(where, stages[:1])
        chosen = [ends[stage][where == FIRST] for stage in place]
    return {site: Spec(module) for site in chosen}


def _photographs(subset: float, epochs: int) -> TrialConfig:
    return TrialConfig(
        data=ImageData(source="nette", size=48, subset=subset),
        model=Model(backbone="xresnet18", options={"width": 0.25}),
        training=ImageTraining(epochs=epochs, batch_size=32, learning_rate=6e-3, schedule="one-cycle"),
    )


# The learning rates are the best of three on validation images.
COLUMNS: Mapping[str, TrialConfig] = {
    "lookup": LOOKUP.change(training={"epochs": 3, "batch_size": 32, "learning_rate": 3e-3}),
    "few": _photographs(0.06, 8),
    "nette": _photographs(0.2, 4),
}
SMALL_COLUMNS: Mapping[str, TrialConfig] = {
    "digits": TrialConfig(
        data=ImageData(source="digits", size=32),
        model=Model(backbone="xresnet18", options={"width": 0.25}),
        training=ImageTraining(epochs=2),
    )
}


def _row(trial: optuna.Trial, *, config: TrialConfig, kinds: Sequence[str] = tuple(ROWS)) -> TrialConfig:
    """Draw the plain model, or one with a row of the table."""
    module = trial.suggest_categorical("module", [NOTHING, *kinds])
    if module == NOTHING:
        return config
    return config.change(model={"placement": placement(config, module, ROWS[module])})


def _own(trial: optuna.Trial, *, config: TrialConfig, kinds: Sequence[str] = ("conv1x1",)) -> TrialConfig:
    """Draw the plain model, or one with the user's module."""
    if trial.suggest_categorical("module", [NOTHING, OWN]) == NOTHING:
        return config
    return config.change(model={"placement": placement(config, kinds[0], ENDS)})


def _xresnet(
    data: ImageData, epochs: int, options: Mapping[str, Any], spec: str | None, rate: float
) -> TrialConfig:
    """Return an xresnet18 as in SimpleSelfAttention's comparisons: batches of 64, no mixup."""
    return TrialConfig(
        data=data,
        model=Model(
            backbone="xresnet18", options=options, placement={} if spec is None else {SSA_SITE: Spec(spec)}
        ),
        training=ImageTraining(epochs=epochs, batch_size=64, learning_rate=rate),
    )


def _rates(trial: optuna.Trial, *, data: ImageData, epochs: int, options: Mapping[str, Any]) -> TrialConfig:
    return _xresnet(data, epochs, options, None, trial.suggest_categorical("learning_rate", RATES))


def _compared(
    trial: optuna.Trial, *, data: ImageData, epochs: int, rate: float, options: Mapping[str, Any]
) -> TrialConfig:
    chosen = trial.suggest_categorical("model", [PLAIN, SSA])
    return _xresnet(data, epochs, options, "ssa" if chosen == SSA else None, rate)


# Data, epochs and options of each form of the two grids: the published data and stem, or a narrow model.
_SSA_FORMS: Mapping[str, Mapping[str, Any]] = {
    "": {"data": ImageData(source="woof1", size=128), "epochs": 50, "options": {"stem": "32-64-64"}},
    SMALL: {"data": ImageData(source="digits", size=32), "epochs": 4, "options": {"width": 0.25}},
    SMALL + PHOTOS: {"data": ImageData(source="folder", size=64), "epochs": 4, "options": {"width": 0.25}},
}


def equal_time_grid(rate: float, form: str) -> str:
    """Return the name of the grid of `ssa-equal-time` at a learning rate, in a form."""
    return f"ssa-equal-time-{rate:g}{form}"


def _imagenet(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw no module, one at the end of res4, or one at the ends of both res3 and res4."""
    count = trial.suggest_categorical("modules", [0, 1, 2])
    if small:
        chosen = ["stage2.block2", "stage3.block2"][2 - count :]
        return TrialConfig(
            data=ImageData(source="digits", size=32),
            model=Model(backbone="xresnet18", options={"width": 0.25}, placement=decomposed(chosen)),
            training=ImageTraining(epochs=4),
        )
    names = [site.name for site in list_stage_sites(RESNET)]
    ends = [[name for name in names if name.startswith(stage)][-1] for stage in ("stage2.", "stage3.")]
    return TrialConfig(
        data=ImageData(source="folder", size=224),
        model=Model(backbone=RESNET, placement=decomposed(ends[2 - count :])),
        training=ImageTraining(
            epochs=90,
            optimizer="sgd",
            learning_rate=0.1,
            weight_decay=1e-4,
            batch_size=256,
            schedule="warmup-cosine",
            label_smoothing=0.0,
        ),
    )


def _blocks(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw a kind of block, with common hyperparameters and the published depth."""
    kind = BLOCKS[trial.suggest_categorical("block", list(BLOCKS))]
    options: dict[str, Any] = {"block": kind, "embed_dim": 192, "heads": 3, "depth": 12}
    if small:
        options |= {"embed_dim": 48, "depth": 4, "patch_size": 4}
    if kind.endswith("layer-scale"):
        options["initial_scale"] = 1e-4
    if kind.startswith("parallel"):
        options["branches"] = 2
    return TrialConfig(
        data=ImageData(source="digits", size=32) if small else ImageData(source="folder", size=168),
        model=Model(backbone="vit", options=options),
        training=replace(vit_space.BLOCKS_TRAINING, epochs=6, batch_size=64, learning_rate=1e-3)
        if small
        else vit_space.BLOCKS_TRAINING,
    )


def _grids() -> Iterator[Space]:
    for form, settings in _SSA_FORMS.items():
        yield grid(f"ssa-lr-sweep{form}", partial(_rates, **settings), {"learning_rate": RATES[3]})
        for rate in RATES:
            draw = partial(_compared, **settings, rate=rate)
            yield grid(equal_time_grid(rate, form), draw, {"model": PLAIN})
    for form in ("", SMALL):
        yield grid(f"da-imagenet{form}", partial(_imagenet, small=bool(form)), {"modules": 0})
        yield grid(f"vit-blocks{form}", partial(_blocks, small=bool(form)), {"block": next(iter(BLOCKS))})
    for name, config in {**COLUMNS, **SMALL_COLUMNS}.items():
        plain = {"module": NOTHING}
        yield grid(f"reality-check-{name}", partial(_row, config=config), plain)
        own = grid(f"reality-check-{name}-{OWN}", partial(_own, config=config), plain)
        yield replace(own, candidate={"module": OWN})


GRIDS = tuple(_grids())
STUDIES = read_studies(__file__)
