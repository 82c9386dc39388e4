"""Export of language models: graphs that read one token after another, and continuations of texts."""

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from attention import ATTENTIONS, Spec
from automl.base.escape import printable
from automl.export import run_export as export
from automl.export.checks import check_together
from automl.export.export_result import ExportResult
from automl.export.formats import forms_of, open_onnx
from automl.export.predict import run_predict
from automl.task import open_task
from automl.tasks.language_modelling import LanguageData, LanguageModel, LanguageTraining
from automl.tasks.language_modelling.data.tokens import TextTokenizer
from automl.tasks.language_modelling.data.windows import TextWindows
from automl.tasks.language_modelling.deploy import LENGTHS
from automl.tasks.language_modelling.space import mixer
from automl.tasks.language_modelling.task import LanguageModelling
from search.config import TrialConfig
from tests.helpers import others_slow
from tests.helpers.automl_cases import HERE, perturb
from tests.helpers.code_cases import CHOSEN

CONTEXT, WINDOW = 16, 4
CAUSAL = {"causal": True, "heads": 2}
SLIDING = Spec("sliding", {**CAUSAL, "window": WINDOW, "encoding": "rotary"})
TEXT = "def main(argument):\n    return argument + 1\n\n"


class Case(NamedTuple):
    """A model: its tokens, its mixers from the first layer on, and whether they keep states."""

    tokens: str
    mixers: list[Spec | None]
    has_steps: bool = True


SUMS = [
    mixer(name, heads=2, window=WINDOW) for name, each in ATTENTIONS.items() if each.sums and each.is_causal
]
CASES = {
    "kinds of states": Case("bytes", [SLIDING, SUMS[0], None]),
    "every kind": Case("bytes", [SLIDING, *SUMS, None]),
    "without states": Case("sub-words", [Spec("conv1x1"), None], has_steps=False),
    "recall": Case("symbols", [Spec("conv1x1")], has_steps=False),
}
TEXTS = {"bytes": "def main(", "symbols": "3 17 0 0 3", "sub-words": "def main("}


class Exported(NamedTuple):
    """A model and its export."""

    case: Case
    task: LanguageModelling
    model: nn.Module
    result: ExportResult
    folder: Path

    def session(self, graph: str) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(str(self.folder / f"{graph}.onnx"))

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """Continue by full forward passes of the trained model."""
        read = list(tokens)
        with torch.inference_mode():
            for _ in range(count):
                read.append(int(self.model(torch.tensor([read]))[0, -1].argmax()))
        return read[len(tokens) :]


def tokenizer_of(task: LanguageModelling) -> TextTokenizer | None:
    return task.windows.tokenizer if isinstance(task.windows, TextWindows) else None


@pytest.fixture(scope="module", params=others_slow(CASES, "kinds of states"))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    case, folder = CASES[request.param], tmp_path_factory.mktemp("export")
    if case.tokens == "symbols":
        data = LanguageData(source="recall", context=CONTEXT, vocabulary=20, pairs=2, examples=64)
    else:
        file = folder.with_name("texts") / "all.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(TEXT.replace("1", f"{i} * {chr(97 + i % 26)}") for i in range(400)))
        vocabulary = 300 if case.tokens == "sub-words" else 0
        data = LanguageData(path=str(file), context=CONTEXT, vocabulary=vocabulary)
    placement = {f"block{i}.mixer": spec for i, spec in enumerate(case.mixers, 1) if spec is not None}
    config = TrialConfig(
        task="language-modelling",
        data=data,
        model=LanguageModel(
            options={"depth": len(case.mixers), "width": 16, "heads": 2}, placement=placement
        ),
        training=LanguageTraining(epochs=1, batch_size=8),
    )
    task = open_task(config, HERE)
    assert isinstance(task, LanguageModelling)
    model = perturb(task.model().eval())
    return Exported(case, task, model, export._write(folder, task, model, CHOSEN, folder, None), folder)


@pytest.fixture(scope="module")
def served(exported: Exported) -> Any:
    return mlflow.pyfunc.load_model(str(exported.folder / "mlflow-model"))


def test_each_graph_is_exported_and_checked(exported: Exported) -> None:
    case, task, _, result, folder = exported
    graphs = ["prefill", "step"] if case.has_steps else ["model"]
    programs = {file for graph in graphs for file in forms_of(graph)}
    files = {"model.safetensors", "config.json", "MODEL_CARD.md", "mlflow-model"} | programs
    files |= {"tokenizer.json"} if case.tokens == "sub-words" else set()
    assert {file.name for file in folder.iterdir()} == files
    assert set(result.differences) == {"mlflow-model"} | programs | (
        {"all steps"} if case.has_steps else set()
    )
    assert all(0 <= difference <= task.tolerance for difference in result.differences.values())
    assert set(result.speeds) == {f"{graph}.onnx" for graph in graphs}
    assert set(result.decoding) == (set(LENGTHS) if "step" in graphs else set())
    assert list(json.loads((folder / "config.json").read_text())["graphs"]) == graphs


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("first", [1, WINDOW, CONTEXT])
def test_steps_equal_the_whole_forward_pass(exported: Exported, first: int, count: int) -> None:
    """Steps continue beyond the context of training, which only the full graph may not exceed."""
    tokens = torch.randint(20, (count, 2 * CONTEXT), generator=torch.Generator().manual_seed(1))
    if not exported.case.has_steps:
        (logits,) = exported.session("model").run(None, {"tokens": tokens[:, :first].numpy()})
        expected = exported.model(tokens[:, :first]).detach().numpy()
        np.testing.assert_allclose(logits, expected, atol=1e-4)
        return
    expected = exported.model(tokens).detach().numpy()
    prefill, step = exported.session("prefill"), exported.session("step")
    names = [each.name for each in step.get_inputs() if each.name.startswith("past")]
    logits, *states = prefill.run(None, {"tokens": tokens[:, :first].numpy()})
    np.testing.assert_allclose(logits, expected[:, first - 1], atol=1e-4)
    for i in range(first, tokens.shape[1]):
        inputs = {"token": tokens[:, i : i + 1].numpy(), "position": np.full(count, i)}
        logits, *states = step.run(None, {**inputs, **dict(zip(names, states, strict=True))})
        np.testing.assert_allclose(logits, expected[:, i], atol=1e-4)


def test_continuation_equals_that_of_whole_forward_passes(exported: Exported) -> None:
    text, count = TEXTS[exported.case.tokens], 5
    (prediction,) = run_predict(exported.folder, [text], tokens=count).predictions
    tokenizer = tokenizer_of(exported.task)
    encoded = text.split() if tokenizer is None else tokenizer.encode([text.encode()])[0]
    expected = exported.greedy(list(map(int, encoded)), count)
    assert prediction.values["tokens"] == expected
    shown = " ".join(map(str, expected)) if tokenizer is None else tokenizer.decode(expected)
    assert prediction.text == prediction.values["continuation"] == shown
    with torch.inference_mode():
        logits = exported.model(torch.tensor([[*map(int, encoded), *expected]]))[0, -count - 1 : -1]
    scores = logits.log_softmax(1)[range(count), expected]
    np.testing.assert_allclose(prediction.values["log_probabilities"], scores, atol=1e-4)


def test_drawn_tokens_depend_on_the_seed_and_differences_are_reported(exported: Exported) -> None:
    text, options = TEXTS[exported.case.tokens], {"tokens": 5, "temperature": 5.0}
    first, again, other = (
        run_predict(exported.folder, [text, text], seed=seed, **options).predictions for seed in (0, 0, 1)
    )
    assert first == again
    assert first[0] == first[1]
    assert first[0].text != other[0].text
    if exported.case.has_steps:
        runs = {graph: open_onnx(exported.folder / f"{graph}.onnx") for graph in ("prefill", "step")}
        other = copy.deepcopy(exported.model)
        nn.init.normal_(next(other.parameters()))
        with pytest.raises(RuntimeError, match="all steps differs from the trained model by"):
            check_together(exported.task, other, runs)


@pytest.mark.slow("starts another interpreter")
def test_code_of_the_card_runs(exported: Exported, tmp_path: Path) -> None:
    page = (exported.folder / "MODEL_CARD.md").read_text()
    usage, client = re.findall(r"```python\n(.*?)```", page, re.S)
    for file in (*exported.folder.glob("*.onnx"), *exported.folder.glob("tokenizer.json")):
        shutil.copy(file, tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-c", usage], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    passed: dict[str, Any] = {}
    exec(client.partition("content =")[0], passed)
    (text,), count = passed["inputs"]["text"], passed["inputs"]["tokens"]
    (prediction,) = run_predict(exported.folder, [text], tokens=count).predictions
    if exported.case.tokens == "symbols":
        assert json.loads(done.stdout) == [*map(int, text.split()), *prediction.values["tokens"]]
    else:
        assert done.stdout == text + prediction.text + "\n"


ELSEWHERE = """
import sys, json
import mlflow.pyfunc

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "automl", "attention", "backbones", "search", "cluster"}:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Absent())
print(json.dumps(mlflow.pyfunc.load_model("mlflow-model").predict(json.loads(sys.argv[1]))))
"""


@pytest.mark.slow("starts another interpreter")
def test_served_model_continues_texts(exported: Exported, served: Any, tmp_path: Path) -> None:
    text = TEXTS[exported.case.tokens]
    values = run_predict(exported.folder, [text], tokens=5).predictions[0].values
    request: dict[str, Any] = {"text": [text, text], "tokens": 5}
    expected = {name: [value, value] for name, value in values.items()}
    assert served.predict(request) == expected
    assert served.predict({name: np.array(value) for name, value in request.items()}) == expected, "a server"
    if exported.case.tokens != "sub-words":
        return
    shutil.copytree(exported.folder / "mlflow-model", tmp_path / "mlflow-model")
    done = subprocess.run(
        [sys.executable, "-I", "-c", ELSEWHERE, json.dumps(request)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == expected


def test_wrong_input_is_refused(served: Any) -> None:
    with pytest.raises(mlflow.MlflowException, match="tokens must be 1 or more; got 0") as refused:
        served.predict({"text": ["1"], "tokens": 0})
    assert refused.value.get_http_status_code() == 400


def test_the_command_prints_continuations(exported: Exported, cli: Any, tmp_path: Path) -> None:
    text, options = TEXTS[exported.case.tokens], ["--tokens", "5"]
    (prediction,) = run_predict(exported.folder, [text], tokens=5).predictions
    shown = printable(prediction.text, keep="\n\t") + "\n"
    assert cli("predict", str(exported.folder), text, *options) == (0, f"{printable(text)}:\n{shown}", "")
    (file := tmp_path / "text.txt").write_text(text)
    assert cli("predict", str(exported.folder), str(file), *options) == (0, f"{file}:\n{shown}", "")
    file.write_bytes(b"\xff\xfe\xff")
    code, _, err = cli("predict", str(exported.folder), str(file), *options)
    assert (code, f"{file} cannot be read as a file of UTF-8 text" in err) == (2, True)
    code, out, _ = cli("predict", str(exported.folder), text, *options, "--json")
    assert (code, json.loads(out)) == (0, [{"input": text, **prediction.values}])
