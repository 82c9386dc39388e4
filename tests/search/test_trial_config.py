"""Configuration of a trial: its format, and messages about invalid ones."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import ATTENTIONS, Spec
from automl.base.errors import InputError
from automl.tasks.image_classification import ImageData, ImageTraining
from backbones import BACKBONES
from search.config import TASKS, Model, TrialConfig
from search.space import load_space
from tests.helpers import FOLDER

# Runs, studies and exported models hold this text: what it says today must be read for ever.
LITERAL = (Path(__file__).parent / "trial_config.json").read_text()

CONFIG = TrialConfig(
    data=ImageData(source="woof", path="/data/imagewoof2", size=128, subset=0.5),
    model=Model(
        backbone="xresnet50",
        options={"width": 0.25},
        placement={
            "stem": Spec("sagan"),
            "stage1.block2.branch": Spec("ssa", {"ks": 3, "order": "xxt-first"}),
            "stage3.block1": Spec("decomposed", {"key_channels": None, "heads": 2}),
        },
    ),
    training=ImageTraining(
        epochs=7,
        batch_size=32,
        optimizer="sgd",
        learning_rate=0.1,
        weight_decay=0.0005,
        schedule="flat-cosine",
        mixup=0.2,
        label_smoothing=0.0,
    ),
    seed=42,
)


def test_writes_and_reads_the_format() -> None:
    assert CONFIG.to_json() == json.loads(LITERAL)
    assert TrialConfig.from_json(json.loads(LITERAL)) == CONFIG


def test_reads_the_fields_of_earlier_versions_where_they_have_no_effect() -> None:
    value = json.loads(LITERAL)
    earlier = {**value, "training": {**value["training"], "insert_at": 0, "perturb": 0.0}}
    assert TrialConfig.from_json(earlier) == TrialConfig.from_json(value)
    with pytest.raises(InputError, match="insert_at"):
        TrialConfig.from_json({**value, "training": {**value["training"], "insert_at": 3}})


def test_missing_keys_get_their_defaults() -> None:
    assert TrialConfig.from_json({}) == TrialConfig()
    wide = {"options": {"width": 0.5}}
    assert TrialConfig.from_json({"model": wide}) == TrialConfig(model=Model(**wide))


def _from(low: float, high: float, *, open: bool = False) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, exclude_min=open)


SPECS = st.sampled_from(
    [Spec(name) for name in ATTENTIONS]
    + [Spec(n, {k: o.default for k, o in record.options.items()}) for n, record in ATTENTIONS.items()]
)
CONFIGS = st.builds(
    TrialConfig,
    task=st.just("image-classification"),
    data=st.builds(
        ImageData,
        source=st.text(),
        path=st.none() | st.text(),
        size=st.integers(24, 1024),
        subset=_from(0, 1, open=True),
    ),
    model=st.builds(
        Model,
        backbone=st.sampled_from([name for name in BACKBONES if name.startswith("xresnet")]),
        options=st.dictionaries(st.just("width"), _from(1 / 16, 16)),
        placement=st.dictionaries(st.text(), SPECS, max_size=4),
    ),
    training=st.builds(
        ImageTraining,
        epochs=st.integers(1),
        batch_size=st.integers(2),
        optimizer=st.sampled_from(["adamw", "sgd"]),
        learning_rate=_from(0, 1e3, open=True),
        weight_decay=_from(0, 1e3),
        schedule=st.sampled_from(["one-cycle", "flat-cosine"]),
        layer_decay=_from(0, 1, open=True),
        clip=_from(0, 10),
        average=_from(0, 0.999),
        mixup=_from(0, 10),
        cutmix=_from(0, 10),
        flip=st.sampled_from([None, True, False]),
        policy=st.sampled_from(["none", "trivial", "rand"]),
        erasing=_from(0, 1),
        label_smoothing=_from(0, 0.999),
    ),
    seed=st.integers(0, 2**32 - 1),
    longer=_from(1, 4),
)


@given(CONFIGS)
@settings(deadline=None)
def test_round_trips_through_json(config: TrialConfig) -> None:
    text = json.dumps(config.to_json(), allow_nan=False)
    assert TrialConfig.from_json(json.loads(text)) == config
    assert ("longer" in json.loads(text)) == (config.longer != 1)


def test_integers_are_accepted_as_floats() -> None:
    """JSON has one type of number, and some writers convert 1.0 to 1."""
    config = TrialConfig.from_json({"data": {"subset": 1}, "training": {"learning_rate": 1, "mixup": 0}})
    values = (config.data.subset, config.training.learning_rate, config.training.mixup)
    assert values == (1.0, 1.0, 0.0)
    assert {type(value) for value in values} == {float}


SEQUENCES, LARNN = "sequence-classification", {"model": {"backbone": "larnn"}}
PROBLEMS: list[tuple[Any, str]] = [
    (None, "the value must be an object; got None"),
    (
        {"sed": 1},
        "unknown key 'sed'; known: task, data, model, training, metric, seed, longer. Did you mean 'seed'?",
    ),
    ({"task": "image-clasification"}, "unknown task 'image-clasification'; choose from "),
    (LARNN, "backbone larnn takes inputs with 1 spatial dimensions, and those of"),
    ({"task": SEQUENCES, **LARNN, "training": {"mixup": 0.1}}, "unknown key 'training.mixup'; known: epochs"),
    ({"seed": -1}, "seed must lie between 0 and 2^32 - 1; got -1"),
    ({"data": {"size": 1025}}, "data.size must lie between 24 and 1024 pixels; got 1025"),
    ({"data": {"subset": float("nan")}}, "data.subset must be above 0 and at most 1; got nan"),
    ({"training": {"batch_size": 1}}, "training.batch_size must be 2 or more, for batch norm; got 1"),
    ({"training": {"optimizer": ["sgd"]}}, "training.optimizer must be one of adamw, adam, sgd; got ['sgd']"),
    ({"training": {"learning_rate": float("inf")}}, "training.learning_rate must be above 0; got inf"),
    ({"metric": "auroc"}, "unknown metric 'auroc'; choose from accuracy, auc"),
    ({"model": {"weights": "default"}}, "backbone 'xresnet18' has no published weights"),
]
PROBLEMS = [case for case in PROBLEMS if SEQUENCES in TASKS or "larnn" not in str(case)]


@pytest.mark.parametrize(("value", "message"), PROBLEMS, ids=[message[:45] for _, message in PROBLEMS])
def test_invalid_values_are_rejected(value: object, message: str) -> None:
    with pytest.raises(InputError) as error:
        TrialConfig.from_json(value)
    assert str(error.value).startswith("configuration: ")
    assert message in str(error.value)
    assert "problems" not in str(error.value)


def test_reports_all_problems_at_once() -> None:
    together: dict[str, Any] = {
        "sed": 1,
        "task": 3,
        "data": {"sise": 1, "size": 7, "subset": "all"},
        "model": {"backbone": "xresnet19", "placement": {"stem": "sagn", "stage1": 3}},
        "training": {"optimizer": "adan", "epochs": 0, "mixup": -1},
    }
    with pytest.raises(InputError) as error:
        TrialConfig.from_json(together)
    first, *problems = str(error.value).splitlines()
    assert first == "configuration: 11 problems"
    mentioned = ["'sed'", "task must", "data.sise", "data.size", "data.subset", "xresnet19", "'stem'"]
    for what in [*mentioned, "'stage1'", "training.optimizer", "training.epochs", "training.mixup"]:
        assert sum(what in problem for problem in problems) == 1, what


def test_the_configuration_of_a_user_defined_task_can_be_sent(tmp_path: Path) -> None:
    """A process that has not loaded the file can read it."""
    config = load_space(f"{FOLDER / 'tabular.py'}:draw")
    drawn = config(optuna.trial.FixedTrial(dict(config.baseline)))
    (tmp_path / "config.pickle").write_bytes(pickle.dumps(drawn))
    program = (
        "import pickle; c = pickle.load(open('config.pickle', 'rb')); print(c.data.noise, c.model.options)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == f"0.1 {drawn.model.options}"


def test_the_code_of_attention_goes_with_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import gate_layers\nfrom torch import nn\n\n\nclass Gate(nn.Module):\n    width = 1\n"
    )
    (tmp_path / "gate_layers.py").write_text("")
    name = f"{tmp_path / 'mine.py'}:Gate"
    config = TrialConfig().change(model={"placement": {"stem": Spec(name)}}).load()
    assert config.user_code() == [name]
    assert {Path(path).name for path in config.code()} == {"mine.py", "gate_layers.py"}
    stored = TrialConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert stored == config
    (tmp_path / "gate_layers.py").write_text("# changed")
    with pytest.raises(InputError, match="has changed; restore it, or start a new search"):
        stored.load()
    (tmp_path / "mine.py").unlink()
    assert TrialConfig.from_json(config.to_json()) == config, "reading needs no file"
