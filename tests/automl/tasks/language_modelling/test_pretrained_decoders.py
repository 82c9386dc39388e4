"""Language modelling with decoders of transformers: training from their weights, resuming, distillation."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from automl.base.errors import InputError
from automl.config.nouns import Question, SearchPlan
from automl.export import run_export as export
from automl.export.predict import run_predict
from automl.search.prepare import starts_from_sensitivity
from automl.storage.storage import Storage
from automl.task import Task, open_task
from automl.task.initial import choose_weights
from automl.tasks.language_modelling import BYTES, LanguageData, LanguageModel, LanguageTraining
from automl.tasks.language_modelling.data import open_windows
from automl.tasks.language_modelling.data.tokens import train_pairs
from automl.tasks.language_modelling.score import UNMARKED, divergence
from automl.tasks.language_modelling.space import mixer
from automl.tasks.language_modelling.task import LanguageModelling, measure_sensitivity, score
from automl.training import checkpoint
from automl.training.loop import fit, start
from search.config import TrialConfig
from tests.helpers import others_slow
from tests.helpers.automl_cases import CPU, HERE, timeless
from tests.helpers.code_cases import CHOSEN
from tests.helpers.tiny_decoders import CONTEXT, DECODERS, VOCABULARY, save

transformers = pytest.importorskip("transformers")

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "slept")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    for i in range(20):
        (folder / f"{i}.txt").write_text(" ".join(draw.choice(WORDS, 40)), encoding="utf-8")
    return folder


@pytest.fixture(params=DECODERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(transformers, request.param, tmp_path / request.param, with_weights=True)


def opened(folder: Path, texts: Path, placed: str = "sliding", **training: Any) -> LanguageModelling:
    shape = LanguageModel(backbone=f"hf:{folder}").shape
    spec = mixer(placed, heads=4, window=4, encoding=shape.encoding, base=shape.base, norm=shape.norm)
    config = TrialConfig(
        task="language-modelling",
        data=LanguageData(path=str(texts), context=CONTEXT),
        model=LanguageModel(backbone=f"hf:{folder}", placement={"block2.mixer": spec}, weights="default"),
        training=LanguageTraining(**{"epochs": 2, "batch_size": 16, "learning_rate": 1e-3, **training}),
    )
    task = open_task(config, HERE)
    assert isinstance(task, LanguageModelling)
    return task


def plain(task: Task) -> LanguageModelling:
    return LanguageModelling(task.config.change(model={"placement": {}}), HERE)


@pytest.mark.parametrize("folder", others_slow(DECODERS, "llama"), indirect=True)
def test_training_continues_after_a_checkpoint(folder: Path, texts: Path, tmp_path: Path) -> None:
    task = opened(folder, texts)
    expected = list(fit(task, start(task)))
    state = start(task)
    first = list(islice(fit(task, state), 1))
    checkpoint.save(Storage(tmp_path / "trial"), task.config, state, first)
    resumed = start(task)
    checkpoint.restore(resumed, checkpoint.read(Storage(tmp_path / "trial"), CPU))
    assert timeless([*first, *fit(task, resumed)]) == timeless(expected)
    assert expected[1]["train_loss"] < expected[0]["train_loss"]


@pytest.mark.parametrize("folder", others_slow(DECODERS, "gpt2"), indirect=True)
def test_distillation_keeps_the_original(folder: Path, texts: Path) -> None:
    task = opened(folder, texts, distil=1.0, epochs=1)
    state, same = start(task), start(plain(task))
    batch = next(iter(task.batches(0)))
    loss = task.loss(state.model, batch)
    loss.backward()
    assert loss > 1e-5
    assert task.loss(same.model.eval(), batch).item() == pytest.approx(0, abs=1e-6)
    assert all(parameter.grad is None for parameter in task.original.parameters())


def test_divergence_is_that_of_numpy() -> None:
    draw = np.random.default_rng(0)
    predicted, taught = draw.normal(size=(2, 2, 3, 4))
    targets = torch.tensor([[0, UNMARKED, 1], [UNMARKED, 2, 2]])
    p, q = (np.exp(t) / np.exp(t).sum(-1, keepdims=True) for t in (taught, predicted))
    expected = (p * np.log(p / q)).sum(-1)[targets != UNMARKED].mean()
    actual = divergence(torch.from_numpy(predicted), torch.from_numpy(taught), targets)
    assert actual.item() == pytest.approx(expected, rel=1e-5)


def test_sensitivity_is_the_loss_of_a_layer(
    tmp_path: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window over the context does no harm in Llama. Linear attention does."""
    folder = save(transformers, "llama", tmp_path, with_weights=True)
    task = plain(opened(folder, texts))
    linear = mixer("linear", heads=4, window=0)
    wide = mixer("sliding", heads=4, window=CONTEXT, base=task.chosen.shape.base)
    harm = measure_sensitivity(task, {"sliding": wide, "linear": linear})
    replaced = open_task(task.config.change(model={"placement": {"block2.mixer": linear}}), HERE)
    losses = [
        score(task, model, task.size("validation"))["loss"]
        for model in (start(replaced).model, task.original)
    ]
    assert harm[1]["linear"] == pytest.approx(losses[0] - losses[1], rel=1e-3)
    assert all(each["linear"] > 1e-4 for each in harm)
    assert [each["sliding"] for each in harm] == pytest.approx([0.0] * task.chosen.depth, abs=1e-5)
    monkeypatch.setattr("automl.tasks.language_modelling.task.WORK", {False: 1.0})
    assert measure_sensitivity(task, {"linear": linear}) == [], "it would take too long"


def test_gpt_starts_from_a_trial(texts: Path, tmp_path: Path) -> None:
    config = TrialConfig(
        task="language-modelling",
        data=LanguageData(path=str(texts), context=CONTEXT),
        model=LanguageModel(options={"depth": 2, "width": 16, "heads": 2}),
        training=LanguageTraining(epochs=1, batch_size=16),
    )
    full = open_task(config, HERE)
    trained = start(full)
    history = list(fit(full, trained))
    checkpoint.save(Storage(tmp_path), config, trained, history, finished=True)
    weights, digest = choose_weights(str(tmp_path))
    wide = {"block1.mixer": mixer("sliding", heads=2, window=CONTEXT)}
    task = open_task(
        config.change(model={"weights": weights, "weights_digest": digest, "placement": wide}), HERE
    )
    tokens = task.example(2) + torch.arange(CONTEXT)
    with torch.no_grad():
        torch.testing.assert_close(start(task).model.eval()(tokens), trained.model.eval()(tokens))


@pytest.mark.slow("ten seconds a model")
def test_an_export_continues_texts_as_the_model_does(folder: Path, texts: Path, tmp_path: Path) -> None:
    task, out = opened(folder, texts), tmp_path / "exported"
    out.mkdir()
    model = start(task).model.eval()
    result = export._write(out, task, model, CHOSEN, out, None)
    assert {"model.onnx", "model.pt2", "mlflow-model"} <= set(result.differences)
    assert max(result.differences.values()) <= task.tolerance
    (prediction,) = run_predict(out, ["the cat"], tokens=4).predictions
    with torch.no_grad():
        read = list(b"the cat")
        for _ in range(4):
            read.append(int(model(torch.tensor([read]))[0, -1, :BYTES].argmax()))
    assert prediction.values["tokens"] == read[-4:]


@pytest.mark.parametrize("folder", others_slow(DECODERS, "gpt2", "llama"), indirect=True)
def test_a_search_starts_from_the_folder(folder: Path, texts: Path) -> None:
    """Its layers have the heads, positions, weights and tokenizer of the model."""
    (folder / "tokenizer.json").write_text(train_pairs([b"the cat sat on a mat"], 265), encoding="utf-8")
    question = Question(space="hybrid", backbone=f"hf:{folder}", data=str(texts), full=1, distil=0.5, size=16)
    configs = question.open().configs(20)
    specs = [spec for config in configs for spec in config.model.placement.values()]
    encodings = {spec.options["encoding"] for spec in specs if spec.type == "sliding"}
    assert encodings == {"none" if folder.name == "gpt2" else "rotary"}
    assert {spec.options["heads"] for spec in specs if "heads" in spec.options} == {4}
    config = configs[0]
    assert isinstance(config.data, LanguageData)
    assert config.model.weights == "default"
    assert Path(config.data.tokenizer) == folder / "tokenizer.json"
    assert open_windows(config.data).vocabulary == 265  # with the end of a document
    assert open_task(config, HERE).model()(torch.zeros(1, 4, dtype=torch.int64)).shape[-1] == VOCABULARY


def test_weights_without_their_tokenizer_are_refused(folder: Path, texts: Path) -> None:
    question = Question(space="hybrid", backbone=f"hf:{folder}", data=str(texts), size=16)
    with pytest.raises(InputError, match=r"has weights but no tokenizer\.json.*save_pretrained"):
        question.open()
    (folder / "model.safetensors").unlink()
    question.open()


def test_the_end_of_a_document_is_the_models_own(tmp_path: Path, texts: Path) -> None:
    save(transformers, "llama", tmp_path)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(train_pairs([b"the cat sat on a mat"], 265), encoding="utf-8")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": [7, 8]}))
    windows = open_windows(LanguageData(path=str(texts), context=8, tokenizer=str(tokenizer)))
    assert windows.vocabulary == 264
    tokens = windows.batch("train", np.arange(windows.size("train")))[0]
    assert (tokens == 7).any()


def test_sensitivity_is_the_default_of_trained_decoders(tmp_path: Path, texts: Path) -> None:
    trained = opened(save(transformers, "llama", tmp_path, with_weights=True), texts)
    new = open_task(trained.config.change(model={"weights": "", "placement": {}}), HERE)
    chosen = SearchPlan(sampler="placement")
    assert starts_from_sensitivity(chosen, trained)
    assert not starts_from_sensitivity(chosen, new)
    assert not starts_from_sensitivity(replace(chosen, prior="none"), trained)
    assert not starts_from_sensitivity(replace(chosen, sampler="tpe"), trained)
