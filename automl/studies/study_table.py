"""The studies: their grids, published figures and sources.

Figures missing in a source are left out. The rows of a table are the cells of the grid, in order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SSA = "SimpleSelfAttention, github.com/sdoria/SimpleSelfAttention"
DECOMPOSED = "Z. Shen et al., Decomposed Attention, arXiv 1812.01243, and its blog post"
COCO = "a folder of COCO's layout: --data FOLDER"
AP: Mapping[str, str] = {"box_ap": "box AP", "mask_ap": "mask AP"}
NAN = "NaN (diverged)"
OOM = "OOM (did not fit in memory)"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of a published table, with the names and figures of the source. Figures are keyed by metric."""

    name: str
    figures: Mapping[str, str] = field(default_factory=dict)


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
        rows: Published rows.
        data: Description of the required `--data`. Empty if the data are downloaded.
        settings: Settings of the search.
        small: Additional settings of the small version.
        reads_code: True if the small version reads the source code of this package.
    """

    name: str
    summary: str
    source: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    data: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    reads_code: bool = False


def _ap(name: str, box: str, mask: str) -> Row:
    return Row(name=name, figures={"box_ap": box, "mask_ap": mask})


# Figures of the table of learning rates: Avg (Max Accuracy) in percent.
SWEEP: Mapping[float, tuple[int, str]] = {
    1e-3: (10, "82.1"),
    3e-3: (30, "84.5"),
    5e-3: (10, "84.6"),
    8e-3: (20, "85.0"),
    1e-2: (20, "84.6"),
    12e-3: (20, "84.4"),
    14e-3: (20, "84.7"),
}

STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Study(
            name="ssa-lr-sweep",
            summary="xresnet18 on Imagewoof at 128 px, 50 epochs, seven learning rates",
            source=SSA,
            columns={"accuracy": "accuracy, %"},
            rows=[
                Row(name=f"{rate:g} ({runs} runs)", figures={"accuracy max": mean})
                for rate, (runs, mean) in SWEEP.items()
            ],
        ),
        Study(
            name="ssa-equal-time",
            summary="the same, then with and without SimpleSelfAttention in the same time",
            source=SSA,
            columns={"accuracy": "accuracy, %"},
            rows=[],
        ),
        Study(
            name="da-modules",
            summary="1, 5 and 7 decomposed attentions in a Mask R-CNN",
            source=DECOMPOSED,
            columns=AP,
            rows=[_ap("1", "40.2", "36.0"), _ap("5", "40.6", "36.1"), _ap("7", "41.2", "36.7")],
            data=COCO,
        ),
        Study(
            name="da-normalisation",
            summary="no normalisation, scaling and softmax in decomposed attention",
            source=DECOMPOSED,
            columns=AP,
            rows=[_ap("None", NAN, NAN), _ap("Scaling", "40.2", "35.9"), _ap("Softmax", "40.2", "36.0")],
            data=COCO,
        ),
        Study(
            name="da-heads",
            summary="1, 8 and 32 heads in decomposed attention",
            source=DECOMPOSED,
            columns=AP,
            rows=[_ap("1", "40.2", "36.0"), _ap("8", "40.3", "36.0"), _ap("32", "40.4", "35.9")],
            data=COCO,
        ),
        Study(
            name="da-conventional",
            summary="1, 5 and 7 modules of decomposed and of conventional attention; see --max-memory",
            source=DECOMPOSED,
            columns=AP,
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
            rows=[
                Row(name=name, figures={"accuracy": figure})
                for name, figure in (("0", "76.052"), ("1", "76.932"), ("2", "77.312"))
            ],
            data="ImageNet's images, one folder per class: --data FOLDER",
        ),
        Study(
            name="vit-blocks",
            summary="four kinds of blocks of a vision transformer on faces at 168 px",
            source="Vision transformer (ViT), a combination of Google's and Facebook's; it gives no figures",
            columns={"accuracy": "accuracy, %"},
            rows=[
                Row(name=name)
                for name in (
                    "Layer_scale_init_Block",
                    "Block",
                    "ParallelBlock",
                    "ParallelLayer_scale_init_Block",
                )
            ],
            data="faces, one folder per person: --data FOLDER",
        ),
        Study(
            name="da-backbones",
            summary="ResNet-50, ResNet-101 and ResNeXt-101 with 0 and 5 decomposed attentions",
            source=DECOMPOSED,
            columns=AP,
            rows=[
                row
                for name, box, mask in (
                    ("ResNet-50", "39.4 (+1.8)", "35.1 (+1.6)"),
                    ("ResNet-101", "41.3 (+1.8)", "36.6 (+1.3)"),
                    ("ResNeXt-101", "43.5 (+1.4)", "38.5 (+1.0)"),
                )
                for row in (Row(name=name), _ap(f"{name} + DA", box, mask))
            ],
            data=COCO,
        ),
        Study(
            name="da-stereo",
            summary="PSMNet with and without a decomposed attention",
            source=DECOMPOSED,
            columns={"epe": "EPE, px"},
            rows=[
                Row(name="PSMNet", figures={"epe": "1.09"}),
                Row(name="DA-PSMNet", figures={"epe": "0.48"}),
            ],
            data="Scene Flow: --data FOLDER",
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
            rows=[],
            small={"epochs": 2, "concurrent": 1},
        ),
    )
}
