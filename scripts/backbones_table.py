"""Write docs/reference/backbones.md, the checks of many models of torchvision and timm.

Run `make backbones-table`. It takes about two hours on two cores, and continues after an interruption. Delete
docs/reference/backbones.json to start again, or name models to repeat their rows. The models are the smallest
of each family.

Each model gets a gated 1x1 convolution, the cheapest module, at its first, middle and last site. Columns:

sites     number of sites, each with one name and each a submodule that runs once; sites at which a module
          replaces another one are counted, but get no module
identity  the model's output is unchanged, bit for bit
gradient  every gate has a gradient, with a contiguous model and contiguous images
format    memory format of trials on a CPU: channels_last, or contiguous if a layer can crash in channels_last
state     the weights load into a model that is built from the configuration's JSON, with equal outputs
export    torch.export's program has the model's output
onnx      onnxruntime has it, too
"""

import json
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torchvision
from torch import Tensor, nn

from attention import Spec
from automl.export.formats import bake, for_onnx
from automl.tasks.image_classification import ImageData
from backbones import Site, build, gates, insert, sites
from backbones.channels import find_crashing_layer
from search.config import Model, TrialConfig

DOCUMENT = Path(__file__).parents[1] / "docs" / "reference" / "backbones.md"
RECORDS = Path(__file__).parents[1] / "docs" / "reference" / "backbones.json"
SECONDS = 600  # limit of one model
CLASSES = 5
VERSIONS = {"torch": torch.__version__, "torchvision": torchvision.__version__, "timm": timm.__version__}

TORCHVISION = [
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "wide_resnet50_2",
    "shufflenet_v2_x0_5",
    "squeezenet1_0",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg11",
    "vgg11_bn",
    "vit_b_32",
]


# The model with the fewest parameters of each of timm's modules.
TIMM = [
    "beit_base_patch16_224",
    "halonet_h1",
    "test_byobnet",
    "cait_xxs24_224",
    "coat_tiny",
    "convit_tiny",
    "convmixer_768_32",
    "test_convnext",
    "cpubone_nano",
    "crossvit_tiny_240",
    "csatv2",
    "cs3darknet_focus_s",
    "cspnext_tiny",
    "davit_tiny",
    "deepseek_vit_412m",
    "deit_tiny_patch16_224",
    "densenet121",
    "dla46x_c",
    "dpn48b",
    "edgenext_xx_small",
    "efficientformer_l1",
    "efficientformerv2_s0",
    "test_efficientnet",
    "efficientvim_m1",
    "efficientvit_b0",
    "efficientvit_m0",
    "vit_tiny_patch16_dinov3_qkvb",
    "fasternet_t0",
    "fastvit_t8",
    "focalnet_tiny_srf",
    "gcvit_xxtiny",
    "gemma4_vit_167m_enc",
    "ghostnet_050",
    "hardcorenas_b",
    "hgnetv2_b0",
    "hiera_tiny_224",
    "sam2_hiera_tiny",
    "hrnet_w18_small",
    "iformer_t",
    "inception_next_atto",
    "inception_resnet_v2",
    "inception_v3",
    "inception_v4",
    "lcnetv2_small",
    "levit_128s",
    "lowformer_b0",
    "test_mambaout",
    "test_coatnet",
    "poolformerv2_s12",
    "gmlp_ti16_224",
    "lcnet_035",
    "mobilenetv5_base",
    "mobilevit_xxs",
    "mvitv2_tiny",
    "naflexvit_base_patch16_parfac_gap",
    "nasnetalarge",
    "nest_tiny",
    "nextvit_small",
    "test_nfnet",
    "pit_ti_224",
    "pnasnet5large",
    "pvt_v2_b0",
    "qwen3_vit_88m",
    "rdnet_tiny",
    "regnetx_002",
    "repghostnet_050",
    "repvit_m1",
    "res2next50",
    "resnest14d",
    "test_resnet",
    "resnetv2_18",
    "rexnet_100",
    "selecsls42",
    "legacy_seresnet18",
    "sequencer2d_s",
    "shvit_s1",
    "skresnet18",
    "starnet_s050",
    "swiftformer_xs",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "swinv2_cr_tiny_224",
    "tiny_vit_5m_224",
    "tnt_s_legacy_patch16_224",
    "tresnet_m",
    "twins_svt_small",
    "vgg11",
    "visformer_tiny",
    "test_vit",
    "vit_tiny_r_s16_p8_224",
    "test_vit_relpos",
    "samvit_base_patch16_224",
    "vitamin_small_224",
    "volo_d1_224",
    "ese_vovnet19b_slim_dw",
    "legacy_xception",
    "xception41p",
    "xcit_nano_12_p8_224",
]


COUNT = len(TORCHVISION) + len(TIMM)


def size_of(name: str) -> int:
    """Return the side of the images that a model is made for."""
    library, _, model = name.partition(":")
    if library != "timm":
        return 299 if model == "inception_v3" else 224
    known = timm.get_pretrained_cfg(model, allow_unregistered=True)
    return known.input_size[1] if known is not None else 224


@dataclass
class Row:
    """Results of one model: whether it passed each column, and the reason if it did not."""

    name: str
    size: int = 0
    sites: int = 0
    where: str = ""
    format: str = ""
    passed: dict[str, bool] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0


COLUMNS = ("sites", "identity", "gradient", "state", "export", "onnx")


def check_model(name: str) -> Row:
    row = Row(name, size_of(name))
    start = time.monotonic()
    try:
        for column, check in Checks(row).all():
            check()
            row.passed[column] = True
    except Exception as raised:
        error: BaseException = raised
        while error.__cause__ is not None:  # the ONNX exporter's errors have the cause last
            error = error.__cause__
        row.reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    row.seconds = time.monotonic() - start
    return row


class Checks:
    """Checks of the columns. Each uses the results of the one before."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.images = torch.randn(2, 3, row.size, row.size, generator=torch.Generator().manual_seed(0))

    def all(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for column in COLUMNS:
            yield column, getattr(self, column)

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        return build(self.row.name, classes=CLASSES, size=self.row.size)

    def sites(self) -> None:
        self.model = self.make()
        before = {key: value.clone() for key, value in self.model.state_dict().items()}
        all_sites = sites(self.model, self.images)
        assert all(torch.equal(before[key], value) for key, value in self.model.state_dict().items()), (
            "listing the sites has changed the model"
        )
        self.row.format = format_of(self.model)
        self.row.sites, self.row.where = (
            len(all_sites),
            " ".join(site.name for site in (all_sites[0], all_sites[-1])),
        )
        stays = [site for site in all_sites if not site.replaces]
        assert len({site.path for site in stays}) == len(stays), "a site has two names"
        self.chosen = choose([site for site in stays if site.positions > 1])

    def identity(self) -> None:
        with torch.no_grad():
            self.expected = self.model.eval()(self.images)
            placement = dict.fromkeys([site.name for site in self.chosen], Spec("conv1x1"))
            self.config = TrialConfig(
                data=ImageData(source="folder", path="photos", size=max(24, self.row.size)),
                model=Model(backbone=self.row.name, placement=placement),
            )
            insert(self.model, placement, self.images)
            assert torch.equal(self.model(self.images), self.expected), "the output has changed"

    def gradient(self) -> None:
        self.model.train()
        # Batch norms, layer scales and gates that start at zero would give some branches no gradient.
        for parameter in self.model.parameters():
            if parameter.numel() and not parameter.detach().any():
                nn.init.normal_(parameter, std=0.05)
        for parameter in gate_parameters(self.model):
            parameter.data.fill_(0.1)
        nn.functional.cross_entropy(self.model(self.images), torch.tensor([0, 1])).backward()
        assert len(gates(self.model)) == len(self.chosen)
        for parameter in gate_parameters(self.model):
            gradient = 0.0 if parameter.grad is None else float(parameter.grad)
            assert math.isfinite(gradient), "a gate's gradient is not finite"
            assert gradient != 0, "a gate has no gradient"

    def state(self) -> None:
        read = TrialConfig.from_json(json.loads(json.dumps(self.config.to_json())))
        copy = insert(
            read.model.build(classes=CLASSES, size=self.row.size), read.model.placement, self.images
        )
        copy.load_state_dict(self.model.state_dict())
        for model in (self.model, copy):  # PyTorch may choose another kernel if gradients are required
            model.eval().requires_grad_(False)
        with torch.no_grad():
            self.expected = self.model(self.images)
            assert torch.equal(copy(self.images), self.expected), "the copy has another output"

    def export(self) -> None:
        bake(self.model)
        batch = torch.export.Dim("N", min=1)
        self.program = torch.export.export(self.model, (self.images,), dynamic_shapes=({0: batch},))
        check_close(self.program.module()(self.images), self.expected)
        assert self.program.module()(self.images[:1]).shape == (1, CLASSES)

    def onnx(self) -> None:
        import onnxruntime

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            torch.onnx.export(
                for_onnx(self.program),
                (),
                file,
                dynamo=True,
                external_data=False,
                input_names=["x"],
                verbose=False,
            )
            session = onnxruntime.InferenceSession(file)
            (output,) = session.run(None, {"x": self.images.numpy()})
        check_close(torch.from_numpy(np.asarray(output)), self.expected)


def format_of(model: nn.Module) -> str:
    return "contiguous" if find_crashing_layer(model) else "channels_last"


def choose(candidates: list[Site]) -> list[Site]:
    assert candidates, "no site has several positions"
    return list(dict.fromkeys([candidates[0], candidates[len(candidates) // 2], candidates[-1]]))


def gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if name.endswith("site_attention.gamma")]


def check_close(output: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-3)


def check_in_process(name: str) -> Row:
    """Run `check_model` in a process, which may take too long or die."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(check_model(name)))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(SECONDS) else Row(name, reason=f"not done after {SECONDS} s")
    except EOFError:
        process.join()
        return Row(name, reason=f"its process died, status {process.exitcode}")
    finally:
        process.kill()


def main(names: list[str]) -> None:
    """Check the models without a row, or those that are named, and replace their rows."""
    before = json.loads(RECORDS.read_text()) if RECORDS.exists() else {"rows": {}}
    if before.get("versions", VERSIONS) != VERSIONS:
        sys.exit(
            f"the rows were made with {before['versions']}, not {VERSIONS}; delete {RECORDS} to start again"
        )
    rows: dict[str, Any] = before["rows"]
    every = [f"torchvision:{name}" for name in TORCHVISION] + [f"timm:{name}" for name in TIMM]
    todo = names or [name for name in every if name not in rows]
    for done, row in enumerate(map(check_in_process, todo), start=1):
        rows[row.name] = vars(row)
        print(f"{done}/{len(todo)} {row.name:40} {len(row.passed)}/{len(COLUMNS)} {row.reason}", flush=True)
        write(rows)


def write(rows: dict[str, Any]) -> None:
    RECORDS.write_text(
        json.dumps({"versions": VERSIONS, "rows": dict(sorted(rows.items()))}, indent=1) + "\n"
    )
    whole = sum(len(row["passed"]) == len(COLUMNS) for row in rows.values())
    versions = ", ".join(f"{name} {version}" for name, version in VERSIONS.items())
    lines = [
        "# Backbones",
        "",
        f"{whole} of {len(rows)} models pass every column; {COUNT} are to be tried. Made by",
        f"`make backbones-table` with {versions};",
        "scripts/backbones_table.py says what the columns are. A model that fails says why.",
        "The checks run on contiguous images. A trial trains in the format named: `contiguous` where, on a",
        "CPU, a strided 1x1 convolution of few channels can end the process in channels_last.",
        "",
        "| model | size | sites | first and last | format | " + " | ".join(COLUMNS[1:]) + " |",
        "|---|---|---|---|---|" + "---|" * (len(COLUMNS) - 1),
    ]
    for name, row in sorted(rows.items()):
        cells = ["yes" if row["passed"].get(column) else "" for column in COLUMNS[1:]]
        if row["reason"]:
            missing = next(i for i, column in enumerate(COLUMNS) if not row["passed"].get(column))
            cells[max(0, missing - 1)] = row["reason"].replace("|", "/")
        lines.append(
            f"| {name} | {row['size']} | {row['sites']} | {row['where']} | {row['format']} | "
            + " | ".join(cells)
            + " |"
        )
    DOCUMENT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
