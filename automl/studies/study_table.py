"""The studies: their grids, published figures and sources.

Figures missing in a source are left out. The rows of a table are the cells of the grid, in order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search.study_spaces import BLOCKS

SSA = "SimpleSelfAttention, github.com/sdoria/SimpleSelfAttention"
DECOMPOSED = "Z. Shen et al., Decomposed Attention, arXiv 1812.01243, and its blog post"
COCO = "a folder of COCO's layout: --data FOLDER"
UNKNOWN = "not printed"
UNPRINTED = f"{UNKNOWN}, the study takes "  # before what the study chose itself
WOOF: Mapping[str, str] = {
    "model": "xresnet18 (stem=32-64-64)",
    "data": "woof1",
    "inputs": "12,454 images",
    "size": "128 px",
    "epochs": "50",
    "scored": "the 500 images of its folder val",
}
COCO_2017: Mapping[str, str] = {
    "model": "torchvision:resnet50",
    "data": "MS-COCO 2017",
    "inputs": "118,287 images",
    "size": f"{UNPRINTED}800 px",
    "epochs": f"{UNPRINTED}12",
    "scored": "a split that it does not name",
}
AP: Mapping[str, str] = {"box_ap": "box AP", "mask_ap": "mask AP"}
NAN = "NaN (diverged)"
OOM = "OOM (did not fit in memory)"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of a published table, with the names and figures of the source.

    Attributes:
        name: Name of the row.
        figures: Published figures by metric. `METRIC max` is the maximum over epochs, `METRIC gain` the
            improvement over the row `plain`.
        runs: Published number of runs.
        plain: Name of the row that this one improves, if the source prints improvements.
    """

    name: str
    figures: Mapping[str, str] = field(default_factory=dict)
    runs: str = ""
    plain: str = ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Published experiment.

    Its grid is the space with its name in `search.study_spaces`. The runs of `ssa-equal-time` and
    `larnn-rounds` are in separate modules.

    Attributes:
        name: Name of the study.
        summary: Description in one line.
        source: Publication.
        columns: Metrics of the table with their titles.
        setup: What the source trained, by the names of `automl.studies.figures`. What it does not print is
            left out. `scored` is the split of its figures.
        rows: Published rows.
        data: Description of the required `--data`. Empty if the data are downloaded.
        notes: What a reader of the table must know, and rows of the source that are not run.
        settings: Settings of the search.
        small: Additional settings of the small version.
        reads_code: True if the small version reads the source code of this package.
    """

    name: str
    summary: str
    source: str
    columns: Mapping[str, str]
    setup: Mapping[str, str]
    rows: Sequence[Row]
    data: str = ""
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    reads_code: bool = False


def _ap(name: str, box: str, mask: str, gains: Sequence[str] = (), plain: str = "") -> Row:
    keys = ("box_ap", "mask_ap", "box_ap gain", "mask_ap gain")
    return Row(name=name, figures=dict(zip(keys, (box, mask, *gains), strict=False)), plain=plain)


STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study(
            name="ssa-lr-sweep",
            summary="xresnet18 on Imagewoof at 128 px, 50 epochs, seven learning rates",
            source=SSA,
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
            summary="the same, then with and without SimpleSelfAttention in the same time",
            source=SSA,
            columns={"accuracy": "accuracy, %"},
            setup=WOOF,
            rows=[],
        ),
        Study(
            name="da-modules",
            summary="1, 5 and 7 decomposed attentions in a Mask R-CNN",
            source=DECOMPOSED,
            columns=AP,
            setup=COCO_2017,
            rows=[_ap("1", "40.2", "36.0"), _ap("5", "40.6", "36.1"), _ap("7", "41.2", "36.7")],
            data=COCO,
        ),
        Study(
            name="da-normalisation",
            summary="no normalisation, scaling and softmax in decomposed attention",
            source=DECOMPOSED,
            columns=AP,
            setup=COCO_2017,
            rows=[_ap("None", NAN, NAN), _ap("Scaling", "40.2", "35.9"), _ap("Softmax", "40.2", "36.0")],
            data=COCO,
            notes=["Scaling divides by sqrt(k), as in the blog post of the source (scaling-keys)."],
        ),
        Study(
            name="da-heads",
            summary="1, 8 and 32 heads in decomposed attention",
            source=DECOMPOSED,
            columns=AP,
            setup=COCO_2017,
            rows=[_ap("1", "40.2", "36.0"), _ap("8", "40.3", "36.0"), _ap("32", "40.4", "35.9")],
            data=COCO,
        ),
        Study(
            name="da-conventional",
            summary="1, 5 and 7 modules of decomposed and of conventional attention; see --max-memory",
            source=DECOMPOSED,
            columns=AP,
            setup=COCO_2017,
            rows=[
                _ap("DA, 1", "40.2", "36.0"),
                _ap("DA, 5", "40.6", "36.1"),
                _ap("DA, 7", "41.2", "36.7"),
                _ap("conventional, 1", "40.3", "35.9"),
                _ap("conventional, 5", OOM, OOM),
                _ap("conventional, 7", OOM, OOM),
            ],
            data=COCO,
            small={"max_memory": "55MB"},
        ),
        Study(
            name="da-imagenet",
            summary="0, 1 and 2 decomposed attentions in a ResNet-50 on ImageNet",
            source=DECOMPOSED,
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
        Study(
            name="da-backbones",
            summary="ResNet-50, ResNet-101 and ResNeXt-101 with 0 and 7 decomposed attentions",
            source=DECOMPOSED,
            columns=AP,
            setup={
                **COCO_2017,
                "model": "torchvision:resnet101 / torchvision:resnet50 / torchvision:resnext101_32x8d",
            },
            rows=[
                row
                for name, plain, with_da, gains in (
                    ("ResNet-50", ("39.4", "35.1"), ("41.2", "36.7"), ("+1.8", "+1.6")),
                    ("ResNet-101", ("41.3", "36.6"), ("43.1", "37.9"), ("+1.8", "+1.3")),
                    ("ResNeXt-101", ("43.5", "38.5"), ("44.9", "39.5"), ("+1.4", "+1.0")),
                )
                for row in (
                    _ap(name, *plain),
                    _ap(f"{name} + DA", *with_da, gains, plain=name),
                )
            ],
            data=COCO,
            notes=[
                "The source prints one figure and one improvement for each backbone, such as 39.4 (+1.8). "
                "That the figure is the plain model's, and that DA has seven modules, is inferred from its "
                "sums: 39.4 + 1.8 = 41.2 is its figure of seven modules, and 41.3 + 1.8 = 43.1 that of DA "
                "with ResNet-101 in its last table. The last table has 45.9 for ResNeXt-101, not 44.9.",
                "Figures of other methods that the source quotes, AP: TDM Faster R-CNN (Inception-ResNet-v2) "
                "36.8, Mask R-CNN (ResNeXt-101) 39.8, Soft-NMS (Aligned-Inception-ResNet) 40.9, Lighthead "
                "R-CNN (ResNet-101) 41.5, Fitness-NMS (ResNet-101) 41.8. They are not run here.",
            ],
        ),
        Study(
            name="da-stereo",
            summary="PSMNet with and without a decomposed attention",
            source=DECOMPOSED,
            columns={"epe": "EPE, px"},
            setup={
                "model": "psmnet",
                "data": "Scene Flow",
                "inputs": "35,454 stereo pairs",
                "size": f"{UNPRINTED}256 x 512 px",
                "epochs": f"{UNPRINTED}10",
                "scored": "a split that it does not name",
            },
            rows=[
                Row(name="PSMNet", figures={"epe": "1.09"}),
                Row(name="DA-PSMNet", figures={"epe": "0.48"}),
            ],
            data="Scene Flow: --data FOLDER",
            notes=[
                "Figures of other methods that the source quotes, EPE: iResNet-i2 1.40, EdgeStereo 1.12, "
                "CSPN 0.78. They are not run here."
            ],
        ),
        Study(
            name="codesearch-encoders",
            summary="code search with self-attention, and with a CNN before it",
            source="Self Attention and CNN self-attention, batches of 1,000, Python of CodeSearchNet",
            columns={
                "mrr": "Validation MRR",
                "test_mrr": "Test MRR",
                "test_mrr_names": "FuncNameTest MRR",
            },
            setup={
                "model": "cnn-selfattention / selfattention (pooling=weighted_mean)",
                "data": "CodeSearchNet, Python",
                "inputs": "412,178 documented functions",
                "epochs": "up to 500, until 5 do not improve",
                "scored": "CodeSearchNet's validation and test splits",
            },
            rows=[
                Row(name=name, figures=dict(zip(("test_mrr", "test_mrr_names", "mrr"), figures, strict=True)))
                for name, figures in (
                    ("Self Attn", ("0.692", "0.680", "0.643")),
                    ("CNN Self Attn", ("0.632", "0.595", "0.583")),
                )
            ],
            data="CodeSearchNet's Python files, or a folder of code: --data FOLDER",
            settings={"test": True},
            reads_code=True,
        ),
        Study(
            name="larnn-rounds",
            summary="both searches for the hyperparameters of a LARNN on UCI HAR",
            source="G. Chevalier, LARNN, arXiv 1808.05578, README and results of both rounds",
            columns={"accuracy": "accuracy, %"},
            setup={
                "model": "larnn",
                "data": "ucihar",
                "inputs": "7,352 sequences",
                "epochs": "25",
                "scored": "the test split, which also chose its best trial",
            },
            rows=[],
            notes=[
                "The published accuracy is of the test split, ours of the validation split: they do not "
                "compare. automl confirm scores the test split. Every trial has all its epochs, as there."
            ],
            settings={"pruning": False, "baseline_share": 0.0},
            small={"epochs": 2, "concurrent": 1},
        ),
    )
}
