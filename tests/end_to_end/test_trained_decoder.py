"""From a trained decoder to a hybrid of it: searched, killed, resumed, confirmed and exported."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from search.placement_effects import read_prior
from search.study import open_study, read_records
from tests.helpers.killable import Search, left

transformers = pytest.importorskip("transformers")

VOCABULARY, CONTEXT = 16, 24


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    """Train a decoder to repeat its tokens, and return its folder."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4 * CONTEXT,
    )
    model = transformers.Qwen2ForCausalLM(config)
    optimizer, draw = torch.optim.Adam(model.parameters(), 1e-2), np.random.default_rng(0)
    for _ in range(60):
        half = torch.from_numpy(draw.integers(1, VOCABULARY, (16, CONTEXT // 2)))
        tokens = torch.cat([half, half], 1)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def last(output: str) -> dict[str, Any]:
    return dict(json.loads(output.strip().splitlines()[-1]))


@pytest.mark.slow("a whole search")
def test_a_hybrid_of_a_trained_decoder_is_searched_killed_and_exported(
    automl: Any, decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    # transformers has sliding layers, so that the baseline has its folder.
    options = ["--space", "recall", "--backbone", f"hf:{decoder}", "--full", 1, "--distil", 0.5]
    more = ["--attention", "sliding", "--trials", 4, "--subset", 0.05, "--epochs", 2, "--concurrent", 1]
    search = Search(tmp_path, "hybrid", [*options, *more])
    search.start()
    try:
        assert search.until("ray::TrialActor"), search.output()
        below = search.children("")
        search.end()
        assert left(below) == []
        search.start()
        assert search.wait() == 0, search.output()
    finally:
        search.end()
    search.check_whole(4)
    records = read_records(search.search_folder, "hybrid")
    study = open_study(search.search_folder, name="hybrid")
    assert len(read_prior(study)) == 2, "each layer with its type"
    assert {record.config.training.distil for record in records} == {0.5}
    assert all(record.config.model.weights for record in records)
    verdict = last(automl("confirm", "hybrid", "--top", 1, "--seeds", 6, "--json"))
    assert verdict["complete"]
    exported = automl("export", "--best", "--out", "out")
    assert re.search(r"^test .*needle@4x [\d.]+", exported, re.M), exported
    has_folder = (tmp_path / "out" / "transformers" / "config.json").exists()
    assert has_folder != ("has no counterpart" in exported)
    automl("export", "--baseline", "--out", "baseline")
    files = {file.name for file in (tmp_path / "baseline" / "transformers").iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= files
    predicted = last(automl("predict", "out", "1 9 2 10 1", "--tokens", 1, "--json"))
    assert 0 <= int(predicted[0]["continuation"]) < VOCABULARY
