"""`automl export` and `automl predict`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from attention import InputError
from automl.cli.json_output import print_json
from automl.cli.options import Json, StorageOption


def export(
    out: Annotated[str, typer.Option(help="Folder for the exported model, or its address in a store.")],
    best: Annotated[
        bool, typer.Option("--best", help="The confirmed winner of a search, or else its best trial.")
    ] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="The best trial without attention, as when nothing beats it.")
    ] = False,
    search: Annotated[
        str | None, typer.Option(help="Name of the search; the latest one if not given.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="An MLflow run's id instead.")] = None,
    storage: StorageOption = "searches",
    quantize: Annotated[
        str | None, typer.Option(help="int8: a quantised ONNX model too, with what it costs in accuracy.")
    ] = None,
    register: Annotated[str | None, typer.Option(help="Name in MLflow's model registry.")] = None,
    alias: Annotated[
        str | None, typer.Option(help="The registered model's alias.", show_default="champion")
    ] = None,
) -> None:
    """Export a trained model as ONNX, torch.export, safetensors and an MLflow model, each checked."""
    from automl.export.run import run_export

    result = run_export(
        out,
        best=best,
        baseline=baseline,
        search=search,
        run=run,
        storage=storage,
        quantize=quantize,
        register_as=register,
        alias=alias,
    )
    print(f"exported  {result.folder} from {result.chosen.origin}")
    print(f"chosen    {result.chosen.choice}")
    print("test      " + ", ".join(f"{key} {value:.4f}" for key, value in result.test.items()))
    print("checked   " + ", ".join(f"{key} {value:.1e}" for key, value in result.differences.items()))
    for name, speed in result.speeds.items():
        print(
            f"speed     {name} {speed.latency:.3g} ms an input, {speed.throughput:,.0f} inputs/s in batches "
            f"of {speed.batch}"
        )
    print(f"          on {result.machine}")
    if result.quantized:
        print(f"{result.quantized.kind:9} {result.quantized}")
    if result.registered:
        print(f"registry  {result.registered.uri} is version {result.registered.version}")
    if isinstance(result.folder, Path):
        print(f"next      automl predict {out} FILE...")
        print(f"or serve  mlflow models serve -m {out}/mlflow-model --env-manager local")


def predict(
    folder: Annotated[Path, typer.Argument(help="A folder that automl export made.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            help="What to predict: images or folders of them; .ts, CSV or NPZ files of sequences."
        ),
    ],
    top: Annotated[int, typer.Option(help="How many labels to show of each.")] = 1,
    as_json: Json = False,
) -> None:
    """Predict with an exported model."""
    from automl.export.predict import run_predict

    if top < 1:
        raise InputError(f"--top must be 1 or more; got {top}")
    found = run_predict(folder, files)
    for prediction in found.predictions:
        print(f"{prediction.input}: {prediction.top(top)}")
    for why in found.unread.values():
        print(f"error: {why}", file=sys.stderr)
    if as_json:
        values = [{"input": prediction.input, **prediction.values} for prediction in found.predictions]
        print_json([*values, *({"input": file, "error": why} for file, why in found.unread.items())])
    if found.unread:
        sys.exit(1)
