"""The formats of an exported model, each written to its file in one folder.

Each graph has a file of each of `FORMS`. Weights and the MLflow model are of all graphs together.
"""

import inspect
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn, ops
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.nn.utils import parametrize

from attention import Spec
from automl.base.errors import InputError, describe_error
from automl.base.serialise import to_json
from automl.task.deployment import (
    BATCH_AXIS,
    MODEL,
    SHORTEST,
    TOKENIZER,
    Arrays,
    Deployment,
    Interface,
    Kind,
    Run,
)
from backbones import Site
from backbones.insertion import build_module
from backbones.site import features


def onnx_file(graph: str) -> str:
    return f"{graph}.onnx"


ONNX = onnx_file(MODEL)  # of a task with one graph
WEIGHTS = "model.safetensors"
CONFIG, CARD, MLFLOW_MODEL = "config.json", "MODEL_CARD.md", "mlflow-model"


def save_weights(folder: Path, model: nn.Module) -> None:
    """Write `model.safetensors`. A tensor shared by two modules is stored twice, as the format requires."""
    save_file({k: v.clone().contiguous() for k, v in model.state_dict().items()}, folder / WEIGHTS)


def bake(model: nn.Module) -> None:
    """Replace parametrised weights, which are computed at each use, by plain weights."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of an exported graph. `FORMS` has them all.

    Attributes:
        suffix: The end of its file's name, after the name of the graph.
        write: Writes the program of a graph to a file. Any error but OSError leaves the form out.
        open: Returns a function from all inputs of the graph in a file to all its outputs.
        opened_by: Function or program that opens the file, for the model card. Empty for ONNX.
    """

    suffix: str
    write: Callable[[ExportedProgram, Path, Deployment], None]
    open: Callable[[Path, Deployment], Run]
    opened_by: str = ""


def save_programs(folder: Path, graph: str, deployment: Deployment) -> dict[str, str]:
    """Write a graph in each of `FORMS` that can have the model. Return the reason for each file left out."""
    # Axes of the same name are the same dimension.
    names = {name for key in deployment.inputs for name in deployment.axes(key).values()}
    bounds = {name: deployment.bounds.get(name, (SHORTEST, None)) for name in names}
    bounds[BATCH_AXIS] = (1, None)
    dims = {name: torch.export.Dim(name, min=least, max=most) for name, (least, most) in bounds.items()}
    shapes = tuple(
        {axis: dims[name] for axis, name in deployment.axes(key).items()} for key in deployment.inputs
    )
    module = deployment.module.eval().requires_grad_(False)
    kinds = [each.kind for each in inspect.signature(module.forward).parameters.values()]
    left_out: dict[str, str] = {}
    program: ExportedProgram | None = None
    for file, form in forms_of(graph).items():
        try:
            program = program or torch.export.export(
                module,
                tuple(deployment.inputs.values()),
                dynamic_shapes=(shapes,) if inspect.Parameter.VAR_POSITIONAL in kinds else shapes,
            )
            form.write(program, folder / file, deployment)
        except OSError:
            raise
        except Exception as error:  # The content of the model determines the type of error.
            (folder / file).unlink(missing_ok=True)
            cause: BaseException = error
            while cause.__cause__ is not None:  # torch's own messages are about its steps
                cause = cause.__cause__
            files = [file] if program else forms_of(graph)
            left_out |= dict.fromkeys(files, describe_error(cause))
            if not program:
                break
    return left_out


def _save_program(program: ExportedProgram, file: Path, deployment: Deployment) -> None:
    torch.export.save(program, file)


def _open_program(file: Path, deployment: Deployment) -> Run:
    program = torch.export.load(file).module()

    def run(inputs: Arrays) -> Arrays:
        with torch.inference_mode():
            outputs: Any = program(*(torch.from_numpy(inputs[name]) for name in deployment.inputs))
        return deployment.named(outputs)

    return run


def _save_onnx(program: ExportedProgram, file: Path, deployment: Deployment) -> None:
    torch.onnx.export(
        for_onnx(program),
        (),
        file,
        dynamo=True,
        external_data=False,
        input_names=list(deployment.inputs),
        output_names=list(deployment.outputs),
        verbose=False,
    )
    _name_axes(file, deployment)


def save_mlflow(folder: Path, graphs: Mapping[str, Interface], deployments: Mapping[str, Deployment]) -> None:
    """Write `mlflow-model`: the ONNX models, code that checks inputs and names outputs, and requirements.

    A decoder takes texts. Nothing is written for other models of several graphs.
    """
    import mlflow.pyfunc
    from mlflow.environment_variables import MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    kind = _kind_of(deployments)
    if kind != "decoder" and len(graphs) > 1:
        return
    MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR.set(False)  # only two local files are copied
    has_tokenizer = (folder / TOKENIZER).exists()
    needed = ["mlflow", "onnxruntime", "numpy", *(["tokenizers"] if has_tokenizer else [])]
    files = {name: folder / onnx_file(name) for name in graphs}
    if has_tokenizer:
        files["tokenizer"] = folder / TOKENIZER
    served = Path(__file__).with_name("served_decoder.py" if kind == "decoder" else "served_model.py")
    with TemporaryDirectory() as scratch:
        files["about"] = Path(scratch) / "about.json"
        files["about"].write_text(json.dumps(describe(graphs, deployments)))
        if kind == "decoder":  # a module that `automl predict` imports too, without MLflow
            for file in list(files.values()):
                if file.parent == folder:
                    (Path(scratch) / file.name).symlink_to(file.resolve())
            code: dict[str, Any] = {
                "loader_module": served.stem,
                "code_paths": [str(served)],
                "data_path": scratch,
            }
        else:
            specs = []
            for out in graphs[MODEL].outputs:
                shape = tuple(-1 if isinstance(size, str) else size for size in out.shape)
                specs.append(TensorSpec(np.dtype(out.dtype), shape, out.name))
            code = {
                "python_model": str(served),
                "artifacts": {name: file.resolve().as_uri() for name, file in files.items()},
                # Without a signature of inputs, as MLflow would convert inputs that the model must reject.
                "signature": ModelSignature(outputs=Schema(specs)),
            }
        mlflow.pyfunc.save_model(
            str(folder / MLFLOW_MODEL),
            **code,
            metadata={"graphs": to_json(graphs)},
            pip_requirements=[f"{name}=={version(name)}" for name in needed],
        )


def describe(graphs: Mapping[str, Interface], deployments: Mapping[str, Deployment]) -> dict[str, Any]:
    """Return the kind, the labels, and the inputs, outputs and details of each graph, for JSON."""
    details = {name: dict(graph.details) for name, graph in deployments.items()}
    return {
        "kind": _kind_of(deployments),
        "labels": list(labels_of(deployments)),
        "graphs": {name: {**to_json(graph), "details": details[name]} for name, graph in graphs.items()},
    }


def labels_of(deployments: Mapping[str, Deployment]) -> Sequence[str]:
    """Return the labels of a task with one graph. They are empty for several graphs."""
    return deployments[MODEL].labels if MODEL in deployments else ()


def _kind_of(deployments: Mapping[str, Deployment]) -> Kind:
    return next((deployment.kind for deployment in deployments.values()), "model")


def _name_axes(file: Path, deployment: Deployment) -> None:
    """Set the names of variable axes, some of which PyTorch invents."""
    import onnx

    model = onnx.load(file)
    names = {}
    for value in (*model.graph.input, *model.graph.output):
        for axis, name in deployment.axes(value.name).items():
            names[value.type.tensor_type.shape.dim[axis].dim_param] = name
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names and dimension.dim_param:
                dimension.dim_param = names[dimension.dim_param]
    onnx.save(model, file)


def for_onnx(program: ExportedProgram) -> ExportedProgram:
    """Return the program with every scaled dot-product attention in four dimensions.

    torch 2.15 cannot export others, as in models with windows (Hiera) or without a dimension of heads (SAM).
    """
    attention = ops.aten.scaled_dot_product_attention.default
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, GraphModule)]
    queries = [node.args[0] for graph in graphs for node in graph.nodes if node.target is attention]
    if all(query.meta["val"].ndim == 4 for query in queries):
        return program  # another pass over a large model takes long
    decomposed: ExportedProgram = program.run_decompositions({attention: _in_four_dimensions})
    return decomposed


def _in_four_dimensions(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **named: Any
) -> Any:
    """Reshape queries, keys and values `(*any, length, width)` to `(product of any, 1, length, width)`."""
    if query.ndim == 4:
        return NotImplemented
    before = query.shape[:-2]
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*before, *attn_mask.shape[-2:]).reshape(-1, 1, *attn_mask.shape[-2:])
    query, key, value = (t.reshape(-1, 1, *t.shape[-2:]) for t in (query, key, value))
    update = F.scaled_dot_product_attention(query, key, value, attn_mask, *rest, **named)
    return update.reshape(*before, *update.shape[-2:])


def find_missing_formats(spec: Spec, site: Site) -> dict[str, str]:
    """Export a module alone, as an export does it with the whole model.

    It keeps its contract at `site`. Return the reason for each file that an export leaves out.
    """
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as scratch:
        module = build_module(spec, site)
        nn.init.ones_(module.gamma)
        bake(module)
        deployment = Deployment(module=module, inputs={"x": features(site, 2)}, outputs=["y"])
        with warnings.catch_warnings(action="ignore"):
            return save_programs(Path(scratch), MODEL, deployment)


def open_onnx(file: Path) -> Run:
    """Return a function from all inputs of the model in `file` to all its outputs.

    It uses as many threads as torch. It raises InputError for an empty batch, for which onnxruntime has no
    clear message.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        for name, value in inputs.items():
            if not len(value):
                raise InputError(
                    f"{file.name} needs at least one input; got an array {name} of shape {value.shape}"
                )
        values = session.run(outputs, dict(inputs))
        return {name: np.asarray(value) for name, value in zip(outputs, values, strict=True)}

    return run


FORMS = (
    Form(suffix=".pt2", write=_save_program, open=_open_program, opened_by="torch.export.load"),
    Form(suffix=".onnx", write=_save_onnx, open=lambda file, deployment: open_onnx(file)),
)


def forms_of(graph: str) -> dict[str, Form]:
    """Return the forms of a graph by their files."""
    return {f"{graph}{form.suffix}": form for form in FORMS}
