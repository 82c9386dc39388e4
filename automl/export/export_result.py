"""The result of an export, the lines that its command prints, and the model card."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from automl.base.escape import markdown, markdown_code
from automl.base.loading import short_name
from automl.base.terminal import Summary, call
from automl.base.units import pluralize
from automl.export.checks import Speed
from automl.export.chosen import Chosen
from automl.export.formats import MLFLOW_MODEL, forms_of, onnx_file
from automl.task import Task
from automl.task.deployment import TRANSFORMERS, Interface, Kind
from automl.task.task_data import SPLITS
from search.class_statistics import ScoreCard
from search.metric import Metric, show_metrics

ARGUMENTS: Mapping[Kind, str] = {  # of `automl predict`
    "model": "FILE...",
    "encoder": '"QUERY" --corpus FOLDER',
    "decoder": '"TEXT"',
}


@dataclass(frozen=True, kw_only=True, repr=False)
class ExportResult(Summary):
    """Exported model. Its `repr` is a few lines.

    Attributes:
        folder: The folder with `model.onnx`, `model.pt2`, `model.safetensors`, `config.json`,
            `MODEL_CARD.md` and `mlflow-model`. More than 20 labels add `confusion.csv`. A task with several
            graphs has `NAME.onnx` and `NAME.pt2` for each, and no `mlflow-model` if it is no decoder. A task
            with texts has `tokenizer.json`, and a decoder whose layers transformers has, too, the folder
            `transformers`.
        chosen: The exported trial, and the reason of its choice.
        differences: Difference of each exported form from the outputs of the trained model.
        test: Metrics on the test split.
        scores: Score card of `model.onnx` on the test split. None for a task without labels.
        speeds: Speed of each ONNX model, by file name.
        machine: Hardware of the speed measurement.
        metrics: Metrics of the task.
        decoding: Of a decoder, the time [ms] of one more token by the context [tokens], and that of the same
            decoder with its own layers alone.
        left_out: The reason for each file that an attention module of others prevents, and for
            `transformers` where a layer of a decoder has no counterpart there.
        kind: `model` of arrays, `encoder` for code search, or `decoder` that continues texts.

    Example:
        After the example of `run_export`:

        >>> "accuracy" in exported.test
        True
    """

    folder: Path
    chosen: Chosen
    differences: Mapping[str, float]
    test: Mapping[str, float]
    scores: ScoreCard | None
    speeds: Mapping[str, Speed]
    machine: str
    metrics: Sequence[Metric] = ()
    decoding: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = "model"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of `facts`, and the next call."""
        yield from self.facts()
        if self.predicts:
            if self.kind == "encoder":
                yield "next", call("run_code_search", str(self.folder), ["QUERY"], corpus="FOLDER")
            else:
                yield "next", call("run_predict", str(self.folder), [ARGUMENTS[self.kind].strip('".')])

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that the command prints, as label and text."""
        yield "exported", f"{self.folder} from {self.chosen.origin}"
        yield "chosen", self.chosen.choice
        if self.chosen.warning:
            yield "warning", self.chosen.warning
        if self.chosen.spent:
            yield "search", self.chosen.spent
        if self.test:
            yield "test", show_metrics(self.test, self.metrics)
        differences = ", ".join(f"{key} {value:.1e}" for key, value in self.differences.items())
        yield "checked", differences or "nothing"
        for file, reason in self.left_out.items():
            yield "left out", f"{file}: {reason}"
        for name, speed in self.speeds.items():
            throughput = f"{speed.throughput:,.0f} inputs/s in batches of {speed.batch}"
            yield "speed", f"{name} {speed.latency:.3g} ms an input, {throughput}"
        if self.speeds:
            yield "", f"on {self.machine}"
        for context, (own, full) in self.decoding.items():
            yield "decoding", f"{own:.3g} ms a token after {context:,}, {full:.3g} ms with its own layers"

    @property
    def predicts(self) -> bool:
        """Return whether the export has the ONNX model that predictions and MLflow need."""
        return MLFLOW_MODEL not in self.left_out

    @property
    def is_served(self) -> bool:
        """Return whether the export has `mlflow-model`."""
        return MLFLOW_MODEL in self.differences

    @property
    def run_id(self) -> str | None:
        """Return the identifier of the trial's run in MLflow, or None if there is none or no answer."""
        return self.chosen.run_id


ELSEWHERE = ("source", "path", "subset")  # of the data, given elsewhere or private
MOST_LABELS = 20  # of the confusion matrix on the page; of more labels, as many lines of confusions
WORST = 10  # labels of a table that has no room for all
README = "README.md"  # of a folder for the hub of Hugging Face
CONFUSION = "confusion.csv"  # has the matrix where the page has not


def model_card(
    task: Task,
    result: ExportResult,
    *,
    labels: Sequence[str],
    graphs: Mapping[str, Interface],
    has_tokenizer: bool = False,
    for_hub: bool = False,
) -> str:
    """Return the card in Markdown. `labels` and `graphs` are those of the deployed model.

    `has_tokenizer` says that the folder `transformers` has one. `for_hub` returns the page of that folder
    alone, with the head that the hub reads.
    """
    scores = result.scores
    own = task.config.training.reported is not None
    how = {} if own else task.describe_splits()
    environment = Environment(
        loader=PackageLoader("automl.export", ""),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else Markup(markdown(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"table": _table, "code": lambda text: Markup(markdown_code(text))}
    return environment.get_template("model_card.md.jinja").render(
        task=task,
        own=own,
        chosen=result.chosen,
        about=_about(task, result) | {"labels": ", ".join(labels)},
        labels=list(labels),
        splits=[] if own else [[split, task.size(split), how.get(split, "")] for split in SPLITS],
        metrics=show_metrics(result.test, result.metrics),
        scores=scores,
        **({} if scores is None else _tables(scores)),
        confusion=CONFUSION,
        speeds=result.speeds,
        speed_rows=[
            [name, f"{speed.latency:.3g} ms", f"{speed.throughput:,.0f} inputs/s"]
            for name, speed in result.speeds.items()
        ],
        decoding_rows=[
            [f"{context:,} tokens", f"{own:.3g} ms", f"{full:.3g} ms"]
            for context, (own, full) in result.decoding.items()
        ],
        machine=result.machine,
        graphs=graphs,
        left_out={file: reason for file, reason in result.left_out.items() if file != TRANSFORMERS},
        for_hub=for_hub,
        has_tokenizer=has_tokenizer,
        transformers=TRANSFORMERS,
        is_loaded=TRANSFORMERS in result.differences,
        no_counterpart=result.left_out.get(TRANSFORMERS),
        programs=_programs(graphs, result.left_out),
        onnx_file=onnx_file,
        is_served=result.is_served,
        differences=", ".join(f"{key} {value:.1e}" for key, value in result.differences.items()),
    )


def _programs(graphs: Iterable[str], left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the files of the graphs besides ONNX by what opens them."""
    programs: dict[str, list[str]] = {}
    for graph in graphs:
        for file, form in forms_of(graph).items():
            if form.opened_by and file not in left_out:
                programs.setdefault(form.opened_by, []).append(file)
    return programs


def _about(task: Task, result: ExportResult) -> dict[str, str]:
    config = task.config
    kind = "backbone" if config.training.reported is None else "training function"
    return {
        kind: _with_options(short_name(config.model.backbone), config.model.options),
        "attention": ", ".join(f"{s} at {site}" for site, s in config.model.placement.items()) or "none",
        "data": _with_options(
            config.data.source, {k: v for k, v in asdict(config.data).items() if k not in ELSEWHERE}
        ),
        "training": f"{pluralize(config.training.epochs, 'epochs')}, {config.training.summary()}",
        "test split": show_metrics(result.test, result.metrics),
        "original, untouched": result.chosen.original,
    }


def _table(heading: Iterable[object], rows: Iterable[Iterable[object]]) -> Markup:
    lines = [[markdown(cell) for cell in row] for row in (heading, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return Markup("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _tables(scores: ScoreCard) -> dict[str, Any]:
    """Return the rows of the tables of scores. Many labels have no room for all."""
    few = len(scores.labels) <= MOST_LABELS
    columns = (scores.recall, scores.precision, scores.f1)
    return {
        "few": few,
        "by_label": [
            [
                scores.labels[i],
                scores.counts[i],
                *("none" if np.isnan(s[i]) else f"{s[i]:.4f}" for s in columns),
            ]
            for i in (range(len(scores.labels)) if few else scores.worst(WORST))
        ],
        "matrix": [[label, *row] for label, row in zip(scores.labels, scores.matrix.tolist(), strict=True)],
        "confusions": scores.confusions()[:MOST_LABELS],
    }


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    """Format `xresnet18, width 0.25`."""
    return ", ".join([name, *(f"{key} {value}" for key, value in options.items())])
