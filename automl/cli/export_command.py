"""`automl export`, and `automl predict` with an exported model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from automl.base.errors import InputError
from automl.base.escape import printable, shell
from automl.base.options import WRITES
from automl.cli.command import JSON_OPTION, STORAGE_OPTION, TRUST_OPTION, option, passed_on, print_json


def export(
    context: typer.Context,
    best: bool = option(
        False, "Export the confirmed winner of a search, or else its best trial.", None, "--best"
    ),
    baseline: bool = option(False, "Export the best trial without attention.", None, "--baseline"),
    search: str | None = option(None, "Name of the search, or of a training.", shown="the latest"),
    run: str | None = option(None, "ID of an MLflow run, instead of a search."),
    out: str | None = option(
        None, "Folder for the exported model.", shown="exports/NAME of the search or run", effect=WRITES
    ),
    storage: str = STORAGE_OPTION,
    trust: bool = TRUST_OPTION,
) -> None:
    """Export a trained model in several forms, and check each.

    These are ONNX, torch.export, safetensors and an MLflow model.
    """
    from automl.export.export_result import ARGUMENTS
    from automl.export.run_export import run_export

    result = run_export(**passed_on(context))
    for label, text in result.facts():
        print(f"{label:9} {text}", file=sys.stderr if label == "warning" else sys.stdout)
    if result.predicts:
        out = out or str(result.folder.relative_to(Path.cwd().resolve()))
        print(f"next      {shell(['automl', 'predict', out])} {ARGUMENTS[result.kind]}")
        if result.is_served:
            served = ["mlflow", "models", "serve", "-m", f"{out}/mlflow-model", "--env-manager", "local"]
            print(f"or serve  {shell(served)}")


def predict(
    folder: Annotated[Path, typer.Argument(help="Folder of an exported model.")],
    files: Annotated[
        list[str],
        typer.Argument(
            help="Inputs: images or folders of images; .ts, CSV or NPZ files of sequences; CSV files of left "
            "and right images. With --corpus: queries in words. For a language model: texts to continue, or "
            "files of them."
        ),
    ],
    top: int | None = option(
        None, "Number of labels or functions to show per input.", shown="1; functions 10"
    ),
    corpus: Path | None = option(None, "Folder of source files to search by queries."),
    out: Path | None = option(
        None, "Folder for predictions that are files: disparities as PFM and PNG.", effect=WRITES
    ),
    tokens: int | None = option(None, "Number of tokens to add to each text.", shown="64; recall 1"),
    temperature: float | None = option(
        None, "Divides the logits before tokens are drawn; 0 takes the most probable.", shown="0"
    ),
    seed: int | None = option(None, "Seed of the drawn tokens.", shown="0"),
    trust: bool = TRUST_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Predict, search code or continue texts with a model."""
    if corpus is not None:
        if any(value is not None for value in (out, tokens, temperature, seed)):
            raise InputError("--corpus takes --top; leave --out, --tokens, --temperature and --seed out")
        _search(folder, files, corpus, top, as_json)
        return
    from automl.export.predict import run_predict

    if top is not None and top < 1:
        raise InputError(f"--top must be 1 or more; got {top}")
    result = run_predict(
        folder, files, out=out, tokens=tokens, temperature=temperature, seed=seed, trust=trust
    )
    for prediction in result.predictions:
        if "continuation" not in prediction.values:
            print(printable(f"{prediction.input}: {prediction.top(top or 1)}"))
        else:
            print(printable(f"{prediction.input}:"))
            print(printable(prediction.text, keep="\n\t"))
        for file in prediction.files:
            print(f"  {file}")
    for message in result.unread.values():
        print(f"error: {printable(message)}", file=sys.stderr)
    if as_json:
        values = [
            {"input": p.input, **p.values, **({"files": [str(f) for f in p.files]} if out else {})}
            for p in result.predictions
        ]
        errors = [{"input": file, "error": message} for file, message in result.unread.items()]
        print_json([*values, *errors])
    if result.unread:
        sys.exit(1)


def _search(folder: Path, queries: list[str], corpus: Path, top: int | None, as_json: bool) -> None:
    from automl.tasks.code_retrieval.data.source_folder import join_reasons
    from automl.tasks.code_retrieval.search import TOP, run_code_search

    result = run_code_search(folder, queries, corpus=corpus, top=TOP if top is None else top)
    if result.skipped:
        print(f"skipped: {join_reasons(result.skipped)} ({len(result.skipped)} in all)", file=sys.stderr)
    for answer in result.answers:
        if len(result.answers) > 1:
            print(f"{answer.query}:")
        for hit in answer.hits:
            print(hit)
    if as_json:
        print_json([answer.to_json() for answer in result.answers])
