"""The result of an export, and the lines that its command prints."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from automl.base.summary import Summary, call
from automl.export.checks import Speed
from automl.export.chosen import Chosen
from automl.export.formats import MLFLOW_MODEL
from automl.storage.storage import Storage
from automl.task.deployment import Kind
from automl.tracking.runs import Registered
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
            graphs has `NAME.onnx` and `NAME.pt2` for each, and a task with texts has `tokenizer.json`. A
            decoder whose layers transformers has, too, has the folder `transformers`.
        chosen: The exported trial, and the reason of its choice.
        differences: Difference of each exported form from the outputs of the trained model.
        test: Metrics on the test split.
        scores: Score card of `model.onnx` on the test split. None for a task without labels.
        speeds: Speed of each ONNX model, by file name.
        machine: Hardware of the speed measurement.
        metrics: Metrics of the task.
        decoding: Of a decoder, the time [ms] of one more token by the context [tokens], and that of the same
            decoder with full layers alone.
        left_out: The reason for each file that an attention module of others prevents, and for
            `transformers` where a layer of a decoder has no counterpart there.
        registered: The registered version, or None.
        pushed: The address on the hub of Hugging Face, or None.
        kind: `model` of arrays, `encoder` for code search, or `decoder` that continues texts.

    Example:
        After the example of `run_export`:

        >>> "accuracy" in exported.test
        True
    """

    folder: Path | Storage
    chosen: Chosen
    differences: Mapping[str, float]
    test: Mapping[str, float]
    scores: ScoreCard | None
    speeds: Mapping[str, Speed]
    machine: str
    metrics: Sequence[Metric] = ()
    decoding: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    registered: Registered | None = None
    pushed: str | None = None
    kind: Kind = "model"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of `facts`, and the next call."""
        yield from self.facts()
        if isinstance(self.folder, Path) and self.predicts:
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
            yield "decoding", f"{own:.3g} ms a token after {context:,}, {full:.3g} ms with full layers alone"
        if self.registered:
            yield "registry", f"{self.registered.uri} is version {self.registered.version}"
        if self.pushed:
            yield "pushed", self.pushed

    @property
    def predicts(self) -> bool:
        """Return whether the export has the ONNX model that predictions and MLflow need."""
        return MLFLOW_MODEL not in self.left_out

    @property
    def run_id(self) -> str | None:
        """Return the identifier of the trial's run in MLflow, or None if there is none or no answer."""
        return self.chosen.run_id
