"""Published comparisons of classifiers of images.

Sources: SimpleSelfAttention, github.com/sdoria/SimpleSelfAttention; Z. Shen et al., Efficient Attention
(2018), arXiv 1812.01243; H. Touvron et al. (2022), arXiv 2203.09795.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import optuna

from attention.spec import Spec
from automl.tasks.image_classification import ImageData, ImageTraining, vit_space
from automl.tasks.image_classification.decomposed_space import list_stage_sites
from automl.tasks.published_study import SOURCE_OF_DECOMPOSED, UNPRINTED, Row, Study
from search.config import Model, TrialConfig
from search.grid import SMALL, decomposed, grid
from search.space import Space

PHOTOS = "-photos"  # suffix of a small form on the user's photographs
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
SOURCE_OF_SSA = "SimpleSelfAttention, github.com/sdoria/SimpleSelfAttention"
WOOF: Mapping[str, str] = {
    "model": "xresnet18 (stem=32-64-64)",
    "data": "woof1",
    "inputs": "12,454 images",
    "size": "128 px",
    "epochs": "50",
    "scored": "the 500 images of its folder val",
}


def _xresnet(
    data: ImageData, epochs: int, options: Mapping[str, Any], spec: str | None, rate: float
) -> TrialConfig:
    """Return an xresnet18 as in SimpleSelfAttention's comparisons: batches of 64, no mixup."""
    return TrialConfig(
        data=data,
        model=Model(
            backbone="xresnet18",
            options=options,
            placement={} if spec is None else {SSA_SITE: Spec(spec)},
        ),
        training=ImageTraining(epochs=epochs, batch_size=64, learning_rate=rate),
    )


def _rates(trial: optuna.Trial, *, data: ImageData, epochs: int, options: Mapping[str, Any]) -> TrialConfig:
    rate = trial.suggest_categorical("learning_rate", RATES)
    return _xresnet(data, epochs, options, None, rate)


def _compared(
    trial: optuna.Trial, *, data: ImageData, epochs: int, rate: float, options: Mapping[str, Any]
) -> TrialConfig:
    chosen = trial.suggest_categorical("model", [PLAIN, SSA])
    return _xresnet(data, epochs, options, "ssa" if chosen == SSA else None, rate)


# Data, epochs and options of each form of the two grids: the published data and stem, or a narrow model.
_SSA_FORMS: Mapping[str, Mapping[str, Any]] = {
    "": {
        "data": ImageData(source="woof1", size=128),
        "epochs": 50,
        "options": {"stem": "32-64-64"},
    },
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


GRIDS = tuple(_grids())
STUDIES: Sequence[Study] = (
    Study(
        name="ssa-lr-sweep",
        form_on_data=PHOTOS,
        summary="xresnet18 on Imagewoof at 128 px, 50 epochs, seven learning rates",
        source=SOURCE_OF_SSA,
        columns={"accuracy": "accuracy, %"},
        setup=WOOF,
        rows=[
            Row(name=rate, figures={"accuracy max": mean}, runs=runs)
            for rate, runs, mean in (
                ("1e-3", "10", "82.1"),
                ("3e-3", "30", "84.5"),
                ("5e-3", "10", "84.6"),
                ("8e-3", "20", "85.0"),
                ("1e-2", "20", "84.6"),
                ("12e-3", "20", "84.4"),
                ("14e-3", "20", "84.7"),
            )
        ],
    ),
    Study(
        name="ssa-equal-time",
        form_on_data=PHOTOS,
        summary="the same, then with and without SimpleSelfAttention in the same time",
        source=SOURCE_OF_SSA,
        columns={"accuracy": "accuracy, %"},
        setup=WOOF,
        rows=[],
        run="automl.tasks.image_classification.equal_time:run",
    ),
    Study(
        name="da-imagenet",
        summary="0, 1 and 2 decomposed attentions in a ResNet-50 on ImageNet",
        source=SOURCE_OF_DECOMPOSED,
        columns={"accuracy": "top-1 accuracy, %"},
        setup={
            "model": "torchvision:resnet50",
            "data": "ImageNet",
            "inputs": "1,281,167 images",
            "size": f"{UNPRINTED}224 px",
            "epochs": f"{UNPRINTED}90",
            "scored": "a split that it does not name",
        },
        rows=[
            Row(name=name, figures={"accuracy": figure, "accuracy gain": gain}, plain="0")
            for name, figure, gain in (
                ("0", "76.052", "0.000"),
                ("1", "76.932", "0.880"),
                ("2", "77.312", "1.260"),
            )
        ],
        data="ImageNet's images, one folder per class: --data FOLDER",
    ),
    Study(
        name="vit-blocks",
        summary="four kinds of blocks of a vision transformer on faces at 168 px",
        source="Vision transformer (ViT), a combination of Google's and Facebook's; it gives no figures",
        columns={"accuracy": "accuracy, %"},
        setup={
            "model": "vit (embed_dim=192, heads=3, depth=12)",
            "data": "faces of its author",
            "size": "168 px",
            "epochs": "25",
            "scored": "the training images",
        },
        rows=[Row(name=name) for name in BLOCKS],
        data="faces, one folder per person: --data FOLDER",
        notes=[
            "The source's Block and ParallelBlock have layer scale from 1e-4 by default, so that Block "
            "computes the same as Layer_scale_init_Block, and ParallelBlock the same as "
            "ParallelLayerScaleInitBlock. Each pair is one row. The other two rows are the same classes "
            "with init_values=0, which removes the layer scale.",
        ],
    ),
)
