"""The model card: description, scores, speed and use of an exported model."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from automl.base.escape import markdown, markdown_code
from automl.base.loading import short_name
from automl.base.units import pluralize
from automl.export.checks import Speed
from automl.export.chosen import Chosen
from automl.export.formats import onnx_file, pt2_file
from automl.tasks import Task
from automl.tasks.base import SPLITS
from automl.tasks.deployment import Interface
from search.class_statistics import ScoreCard
from search.metric import Metric

if TYPE_CHECKING:
    from automl.export.run_export import ExportResult

ELSEWHERE = ("source", "path", "subset")  # of the data, given elsewhere or private
MOST_LABELS = 20  # of the confusion matrix on the page; of more labels, as many lines of confusions
WORST = 10  # labels of a table that has no room for all
CONFUSION = "confusion.csv"  # has the matrix where the page has not

_CARD = """# {name}

A model {purpose}{labels}, exported by attention-automl from {origin}.

| | |
|---|---|
{about}

## Verdict

{verdict}

This model: {what}.

## Data

{data}

## Scores on the test split

{scores}

## Speed on this machine

{speed}

## How to use it

{how}

## Checks

Largest difference from the trained model on {inputs}: {differences}.

## Limits

Trained on the data above alone: {else_given}. {limit}
"""

_HOW = """{usage}
Served by `mlflow models serve -m mlflow-model --env-manager local`, it answers requests such as this one:

```python
import json, urllib.request, numpy as np
{request}
content = json.dumps({{"inputs": inputs}}).encode()
headers = {{"Content-Type": "application/json"}}
request = urllib.request.Request("http://127.0.0.1:5000/invocations", content, headers)
answer = json.load(urllib.request.urlopen(request))["predictions"]
print({answer})
```

{programs} for `torch.export.load`, `mlflow-model` for `mlflow models serve`, and
`model.safetensors` with `config.json` the weights to train on from."""

# The same for an export without an ONNX model.
_HOW_WITHOUT = """An attention module prevents some of the formats:

{left_out}

{programs}`model.safetensors` with `config.json` has the weights to train on from."""

# The same for a training function that declares no model to export.
_HOW_REBUILT = """There is no ONNX model: {reason}. `rebuild.py` runs the start of the function, with this
placement, and loads `model.safetensors`:

```python
from rebuild import model
```"""

_DATA = """{source}, hash of the data `{digest}`.

{splits}

The search ranks on the validation split. The test split was read for this page, and by a confirmation if
there was one."""

_OWN_DATA = """{what}. A search ranks on what it reports after each epoch, and a confirmation on what it
reports with `trial.test`."""

# What the card says of the choice: when nothing was confirmed, when no winner was found, when this is one.
_LIMITS = (
    "What was chosen by a search was chosen on its validation split; whether it is better than the plain "
    "backbone has not been confirmed on fresh seeds.",
    "What was chosen by a search was chosen on its validation split; retraining on fresh seeds did not show "
    "it to be better than the plain backbone.",
    "The verdict holds for this data, size and training. The confirmation compared models on this test "
    "split; where it had several to choose from, the {metric} above flatters the one it chose.",
)


# Its behaviour on inputs outside of the training distribution.
_LABELLED = "whatever else it is given gets one of these labels too, and how sure it is\nthen means nothing"
_UNLABELLED = "what it answers to anything else means nothing"

_USAGE = """{inputs}
{outputs}

```python
import numpy as np, onnxruntime

session = onnxruntime.InferenceSession("{file}")
inputs = dict(np.load("inputs.npz"))  # {names}
print(session.run(None, inputs))
```
"""


def model_card(
    task: Task, result: "ExportResult", *, labels: Sequence[str], graphs: Mapping[str, Interface]
) -> str:
    """Return the card in Markdown.

    Args:
        result: What was exported, measured and left out.
        labels: Labels of the deployed model.
        graphs: Inputs and outputs of each of its graphs.
    """
    chosen, test, scores, left_out = result.chosen, result.test, result.scores, result.left_out
    model, training, data = task.config.model, task.config.training, task.config.data
    is_own = training.reported is not None
    about = {
        "training function" if is_own else "backbone": _with_options(
            short_name(model.backbone), model.options
        ),
        "attention": ", ".join(f"{spec} at {site}" for site, spec in model.placement.items()) or "none",
        "data": _with_options(data.source, {k: v for k, v in asdict(data).items() if k not in ELSEWHERE}),
        "training": f"{pluralize(training.epochs, 'epoch')}, {training.summary()}",
        "test split": _metrics(test, task.metric),
    }
    if labels:
        about["labels"] = ", ".join(labels)
    return _CARD.format(
        name=markdown(chosen.name),
        purpose="of a training function" if is_own else f"for {markdown(task.config.task)}",
        origin=markdown(chosen.origin)
        if chosen.run_id is None
        else f"MLflow run {markdown_code(chosen.run_id)}",
        labels=f" with {len(labels)} labels" if labels else "",
        else_given=_LABELLED if labels else _UNLABELLED,
        about="\n".join(f"| {key} | {markdown(value)} |" for key, value in about.items() if value),
        verdict=_verdict(chosen),
        what=markdown(chosen.what),
        data=_OWN_DATA.format(what=markdown(task.describe_data())) if is_own else _data(task),
        inputs="inputs made of the function's example" if is_own else "real test inputs",
        scores=markdown(_metrics(test, task.metric) or "None: a confirmation asks the training function.")
        if scores is None
        else _scores(scores, test, task.metric),
        speed=_speed(result.speeds, result.machine),
        how=_how_without(graphs, left_out) if left_out else _how(task, graphs, is_labelled=bool(labels)),
        differences=markdown(", ".join(f"{key} {value:.1e}" for key, value in result.differences.items()))
        or "none",
        limit=_LIMITS[2 if chosen.confirmed else 0 if chosen.verdict is None else 1].format(
            metric=markdown(task.metric.name)
        ),
    )


def _data(task: Task) -> str:
    how = task.describe_splits()
    splits = ([split, task.size(split), how.get(split, "")] for split in SPLITS)
    return _DATA.format(
        source=markdown(task.data.source),
        digest=task.digest,
        splits=table(["split", "size", "how it came about"], splits),
    )


def _verdict(chosen: Chosen) -> str:
    """Return the headline of the verdict in bold, and the figures below it."""
    if chosen.verdict is None:
        return "Not confirmed on fresh seeds."
    return f"**{markdown(chosen.verdict)}**\n\n{markdown(chosen.figures)}".strip()


def table(heading: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Format a Markdown table."""
    lines = [[markdown(cell) for cell in row] for row in (heading, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _how(task: Task, graphs: Mapping[str, Interface], *, is_labelled: bool) -> str:
    return _HOW.format(
        usage=task.usage() or "\n".join(_usage(name, graph) for name, graph in graphs.items()),
        programs=_programs(graphs),
        request=task.request().strip(),
        answer='answer["label"], answer["probability"]' if is_labelled else "answer",
    )


def _how_without(graphs: Collection[str], left_out: Mapping[str, str]) -> str:
    if not graphs:
        return _HOW_REBUILT.format(reason=next(iter(left_out.values())))
    written = [name for name in graphs if pt2_file(name) not in left_out]
    return _HOW_WITHOUT.format(
        left_out=table(["left out", "reason"], left_out.items()),
        programs=f"{_programs(written)} for `torch.export.load`. " if written else "",
    )


def _usage(name: str, graph: Interface) -> str:
    return _USAGE.format(
        inputs="\n".join(f"Input {signature}." for signature in graph.inputs),
        outputs="\n".join(f"Output {signature}." for signature in graph.outputs),
        names=", ".join(signature.name for signature in graph.inputs),
        file=onnx_file(name),
    )


def _programs(graphs: Iterable[str]) -> str:
    files = [f"`{pt2_file(name)}`" for name in graphs]
    return " and ".join(files) + (" is the same graph" if len(files) == 1 else " are the same graphs")


def _metrics(test: Mapping[str, float], metric: Metric) -> str:
    """Format `accuracy 0.8213 (82.13 %), loss 0.5210`."""
    shown = {key: f"{key} {value:.4f}" for key, value in test.items()}
    if metric.unit and metric.name in test:
        shown[metric.name] += f" ({metric.show(test[metric.name])})"
    return ", ".join(shown.values())


def _scores(scores: ScoreCard, test: Mapping[str, float], metric: Metric) -> str:
    right, counts = scores.matrix.trace(), scores.counts
    few = len(scores.labels) <= MOST_LABELS
    shown = range(len(scores.labels)) if few else scores.worst(WORST)
    columns = (scores.recall, scores.precision, scores.f1)
    parts = [
        f"{markdown(_metrics(test, metric))}.",
        f"`model.onnx` answers {right} of {counts.sum()} right, {scores.accuracy:.4f}.",
        *([] if few else [f"Of {len(scores.labels)} labels those with the lowest F1:"]),
        table(
            ["label", "inputs", "recall", "precision", "F1"],
            (
                [scores.labels[i], counts[i], *("none" if np.isnan(s[i]) else f"{s[i]:.4f}" for s in columns)]
                for i in shown
            ),
        ),
    ]
    if few:
        parts += [
            "The confusion matrix: a line for each true label, a column for each answer.",
            table(
                ["", *scores.labels],
                ([label, *row] for label, row in zip(scores.labels, scores.matrix.tolist(), strict=True)),
            ),
        ]
    else:
        parts += [
            f"The most frequent confusions; `{CONFUSION}` has the whole matrix, a line for each true label.",
            table(["true", "answered", "times"], scores.confusions()[:MOST_LABELS]),
        ]
    return "\n\n".join(parts)


def _speed(speeds: Mapping[str, Speed], machine: str) -> str:
    if not speeds:
        return "Not measured, as there is no ONNX model."
    batch = next(iter(speeds.values())).batch
    return (
        table(
            ["", "latency of one input", f"throughput in batches of {batch}"],
            (
                [name, f"{speed.latency:.3g} ms", f"{speed.throughput:,.0f} inputs/s"]
                for name, speed in speeds.items()
            ),
        )
        + f"\n\nMedians on {markdown(machine)}. Elsewhere it differs."
    )


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    """Format `xresnet18, width 0.25`."""
    return ", ".join([name, *(f"{key} {value}" for key, value in options.items())])
