"""Several labels and numbers of images: tables, splits, losses, metrics, and what is shown of them."""

import re
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, mean_absolute_error, r2_score

from automl.base.errors import InputError
from automl.task import open_task
from automl.tasks.image_classification.data import open_image_records, open_split
from automl.tasks.image_classification.data.dataset import list_images
from automl.tasks.image_classification.targets import Labels, Numbers
from automl.tasks.image_classification.task import ImageClassification
from search.class_metrics import LABELS, MACRO_AP, MAE, NUMBERS, R_SQUARED, ClassMetric
from search.class_statistics import random_precision
from tests.helpers.automl_cases import HERE, Cli, tiny
from tests.helpers.drawn_targets import COLOURS, draw, write_table


def opened(root: Path, **parts: Any) -> ImageClassification:
    data = {"source": "folder", "path": str(root), "size": 24, "subset": 1.0}
    task = open_task(tiny(data=data, **parts), HERE)
    assert isinstance(task, ImageClassification)
    return task


Table = Callable[[list[str], list[str]], Path]


@pytest.fixture
def table(tmp_path: Path, make_folder: Callable[..., Path]) -> Table:
    """Return a function that writes four images and their table, whose rows have commas."""

    def write(columns: list[str], targets: list[str]) -> Path:
        root = make_folder(tmp_path / "d", {"images": 4})
        rows = [[f"images/{i:04}.png", *target.split(",")] for i, target in enumerate(targets)]
        return write_table(root, ["file", *columns], rows)

    return write


@pytest.mark.parametrize(
    ("columns", "targets", "kind", "names"),
    [
        (["label"], ["cat", "dog", "cat", "dog"], "classes", ("cat", "dog")),
        (["labels"], ["cat; dog", "dog", "cat", "bird"], "labels", ("bird", "cat", "dog")),
        (["Cat", "dog"], ["1,0", "0,1", "0,0", "1,1"], "labels", ("Cat", "dog")),
        (["defect"], ["1", "0", "0", "1"], "labels", ("defect",)),
        (["price"], ["1.5", "-2", "1e3", "0"], "numbers", ("price",)),
        (["target", "note"], ["1,a", "2,b", "3,c", "4,d"], "numbers", ("target",)),
        (["group", "price"], ["a,1", "a,2", "b,3", "b,4"], "numbers", ("price",)),
    ],
)
def test_columns_decide_what_is_learned(
    columns: list[str], targets: list[str], kind: str, names: tuple[str, ...], table: Table
) -> None:
    listing = list_images("folder", table(columns, targets), 24)
    assert (listing.target, listing.classes) == (kind, names)
    items = {item.name: item for item in listing.splits["train"]}
    if kind == "numbers":
        column = [float(target.split(",")[columns.index(names[0])]) for target in targets]
        assert [item.values[0] for _, item in sorted(items.items())] == column
    if columns == ["labels"]:
        assert items["images/0000.png"].values == (0, 1, 1)
        assert items["images/0000.png"].shown == "cat;dog"
    if columns == ["Cat", "dog"]:
        assert items["images/0002.png"].shown == "none"


@pytest.mark.parametrize(
    ("columns", "targets", "message"),
    [
        (["labels"], ["a;b", "", "a", "b"], "line 3: 0001.png has no label; write one or more with ';'"),
        (["labels"], ["a;b", "a", "a", "a"], "every image has the label 'a', among 4 to train on"),
        (["a", "b"], ["1,0", "0,0", "0,0", "1,0"], "no image has the label 'b', among 4"),
        (["a", "b"], ["1,0", "0,1", "0,2", "1,0"], "line 4: .* needs 0 or 1 in the column b.*; got '2'"),
        (["price"], ["1", "2", "two", "3"], "line 4: .* a number in the column price.*; got 'two'"),
        (["target"], ["1", "nan", "2", "3"], "line 3: .* a number in the column target.*'nan'"),
        (["price"], ["2.5"] * 4, "all 4 images to train on have the number 2.5; a number needs two values"),
        (["breed"], ["a", "b", "a", "b"], "one label or .*it has file, breed. Numbers are in"),
        (["labels", "split"], ["a;b,train", "a,train", "b,train", "c;a,test"], "labels in .*; 'c' .1 in all"),
    ],
)
def test_bad_tables_are_refused(
    columns: list[str], targets: list[str], message: str, table: Table, cli: Cli
) -> None:
    code, _, err = cli("data", str(table(columns, targets)), "--size", "24")
    assert code == 2
    assert re.search(message, err), err


def test_folders_are_labels_where_the_table_says_so(
    tmp_path: Path, make_folder: Callable[..., Path], cli: Cli
) -> None:
    root = make_folder(tmp_path / "d", {"cat": 4, "dog": 4, "bird;dog": 2})
    shutil.copy(root / "cat/0000.png", root / "cat/copy.png")
    shutil.copy(root / "cat/0000.png", root / "dog/a.png")
    (root / "dog/b.png").symlink_to("../cat/0001.png")
    (root / "dog/c.png").hardlink_to(root / "cat/0002.png")
    assert "labels      may an image have several? docs/" in cli("data", str(root), "--size", "24")[1]
    (root / "labels.csv").write_text("labels\n")
    listing = list_images("folder", root, 24)
    assert (listing.target, listing.classes) == ("labels", ("bird", "cat", "dog"))
    shown = {item.name: item.shown for item in listing.splits["train"]}
    assert len(shown) == 10
    assert [shown[f"cat/000{i}.png"] for i in range(4)] == ["cat;dog"] * 3 + ["cat"]
    assert shown["bird;dog/0000.png"] == "bird;dog"
    kind = "copies of another image, which has the labels of their folders, too"
    assert listing.tally.kept == {kind: (4, ["cat/copy.png", "dog/a.png", "dog/b.png"])}
    (root / "labels.csv").write_text("file,group,tags\ndog/a.png,7,\ncat/0003.png,7,\n")
    groups = {item.name: item.group for item in list_images("folder", root, 24).splits["train"]}
    assert groups["dog/a.png"] == groups["cat/0003.png"] == "7"
    assert "cat/0000.png" not in groups
    code, out, err = cli("data", str(root), "--size", "24")
    assert code == 0, err
    assert re.search(r"^label .*^bird  .*^cat  .*^target +1 to 2 labels an", out, re.M | re.S), out


def test_images_with_two_targets_are_left_out(table: Table) -> None:
    root = table(["price"], ["0", "1", "2", "3"])
    with (root / "labels.csv").open("a") as file:
        file.write("images/0000.png,7\n")
    listing = list_images("folder", root, 24)
    assert listing.tally.left_out["images with two different labels"] == (1, ["images/0000.png as 0 and 7"])


def test_each_split_has_its_share_of_the_rarest_labels(tmp_path: Path) -> None:
    root = draw(tmp_path / "d", 60, listed=False)
    records = open_image_records("folder", path=root, size=24)
    rarest = np.argmin(np.sum([item.values for item in records.file.inputs], axis=0))
    fractions = [np.mean([item.values[rarest] for item in records.inputs(split)]) for split in records.whole]
    assert max(fractions) - min(fractions) < 0.1
    assert "of each rarest label" in records.describe_splits()["test"]
    manifest = {name: label for _, name, label, _ in records.manifest().rows()}
    assert manifest["000.png"] == records.file.inputs[records.file.names.index("000.png")].shown
    images = open_split("folder", "train", path=root, size=24)
    assert images.target.names == COLOURS
    by_name = {item.name: item.values for item in records.file.inputs}
    assert [tuple(row) for row in images.values.tolist()] == [by_name[name] for name in images.names()]


def test_labels_are_learned_as_several_questions(tmp_path: Path) -> None:
    task = opened(draw(tmp_path / "d", 60), training={"cutmix": 1.0, "mixup": 0.5, "batch_size": 16})
    assert (task.metric, task.labels, task.learned) == (MACRO_AP, [], ())
    assert "; 1 to 3 labels an image" in task.describe_data()
    model = task.model()
    x, y, z, weight = next(iter(task.batches(0)))
    with torch.no_grad():
        logits = model(x).float()
        loss = task.loss(model.train(), (x, y, z, weight))
        expected = sum(
            fraction
            * F.binary_cross_entropy_with_logits(model(x).float(), of.float(), reduction="none").mean(1)
            for fraction, of in ((weight, y), (1 - weight, z))
        )
    assert logits.shape == (16, 3)
    assert loss.item() == pytest.approx(expected.mean().item(), rel=1e-4)
    metrics = task.evaluate(model.eval(), "validation")
    assert metrics.keys() == {metric.name for metric in LABELS}


def test_numbers_are_learned_in_standard_deviations(tmp_path: Path) -> None:
    root = draw(tmp_path / "d", 60, numbers=True)
    task = opened(root, training={"cutmix": 1.0, "mixup": 0.5, "batch_size": 16})
    assert (task.metric, task.target.names) == (R_SQUARED, ("price",))
    chance = task.chance("test")
    assert chance is not None
    assert chance.value == 0
    train = task.targets("train")
    model, batch = task.model().train(), next(iter(task.batches(0)))
    x, y = batch  # numbers are not mixed
    with torch.no_grad():
        loss, outputs = task.loss(model, batch), model(x)
    scaled = (y - train.mean()) / train.std(correction=0)
    assert loss.item() == pytest.approx(F.huber_loss(outputs.double(), scaled).item(), abs=1e-5)
    evaluator = task.evaluator("test")
    with torch.no_grad():
        metrics = task.evaluate(model.eval(), "test", evaluator)
        deployed = task.deployment(model).run(task.model_inputs("test", 100))["number"]
    true = task.targets("test").numpy()
    assert metrics["r2"].item() == pytest.approx(r2_score(true, deployed), abs=1e-3)
    assert metrics["mae"].item() == pytest.approx(mean_absolute_error(true, deployed), rel=1e-3)
    assert len(evaluator.answers(HERE).values) == len(true)
    with pytest.raises(InputError, match="--metric must be one of r2, mae for data of numbers; got accuracy"):
        opened(root, metric="accuracy")
    with pytest.raises(InputError, match="--class-weights balanced is not for numbers"):
        opened(root, training={"class_weights": "balanced"})


def score(metric: ClassMetric, outputs: np.ndarray, true: np.ndarray) -> float:
    statistics = metric.update(torch.tensor(outputs), torch.tensor(true))
    return metric.compute(statistics, len(true)).item()


@pytest.mark.parametrize("metric", [*LABELS, *NUMBERS], ids=lambda metric: metric.name)
def test_metrics_are_those_of_scikit_learn(metric: ClassMetric) -> None:
    """Values of single inputs are those of leaving them out."""
    random = np.random.default_rng(1)
    for n in (30, 8):
        true = random.normal(size=(n, 1)) if metric in NUMBERS else (random.random((n, 4)) < 0.3) * 1.0
        outputs = np.round(random.normal(size=true.shape) + true, 1)  # with ties
        seen = true.any(0)
        expected = {
            MACRO_AP: lambda t, o, s: average_precision_score(t[:, s], o[:, s], average="macro"),
            R_SQUARED: lambda t, o, s: r2_score(t, o),
            MAE: lambda t, o, s: mean_absolute_error(t, o),
        }[metric](true, outputs, seen)
        value = score(metric, outputs, true)
        assert value == pytest.approx(expected)
        kept = metric.keep(torch.tensor(outputs), torch.tensor(true))
        without = [score(metric, np.delete(outputs, i, 0), np.delete(true, i, 0)) for i in range(n)]
        pseudo = n * value - (n - 1) * np.array(without)
        np.testing.assert_allclose(metric.per_example(kept, torch.tensor(true)), pseudo, atol=1e-9)


@pytest.mark.parametrize("inputs", range(1, 8))
def test_random_order_of_labels_has_this_average_precision(inputs: int) -> None:
    for positives in range(1, inputs + 1):
        orders = np.array([*combinations(range(1, inputs + 1), positives)])
        values = (np.arange(1, positives + 1) / orders).mean(1)
        expected = pytest.approx((values.mean(), values.std()), abs=1e-7)
        assert random_precision(positives, inputs) == expected


@pytest.mark.parametrize("metric", [MACRO_AP, MAE], ids=lambda metric: metric.name)
def test_guessing_of_labels_and_numbers_is_known(metric: ClassMetric) -> None:
    random = np.random.default_rng(0)
    true = random.exponential(size=(80, 1)) if metric == MAE else random.random((80, 3)) < [0.1, 0.3, 0.6]
    targets, noise = torch.tensor(true.astype(float)), random.normal(size=(200, *true.shape))
    answers = np.full_like(noise, np.median(true)) if metric == MAE else noise
    values, chance = [score(metric, each, targets.numpy()) for each in answers], metric.chance_of(targets)
    assert chance is not None
    assert np.mean(values) == pytest.approx(chance.value, abs=0.01)
    assert np.std(values) <= chance.error
    assert MACRO_AP.chance_of(torch.zeros(4, 2)) is None, "no input has a label"


def test_overviews_have_labels_and_numbers(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tags = r"^label .*^red  .*^all +\d+ +\d+ +6$.*^target +1 to \d labels an"
    prices = r"^target +price 1\d\d\d to 1\d\d\d, mean 1\d\d\d, .*quartiles 1"
    for name, pattern in {"tags": tags, "prices": prices}.items():
        draw(tmp_path / name, 30, numbers=name == "prices")
        code, out, err = cli("data", name, "--size", "24")
        assert code == 0, err
        assert re.search(pattern, out, re.M | re.S), out


def test_predictions_name_labels_and_numbers() -> None:
    labels, number = Labels(names=("cat", "dog")), Numbers(names=("price",))
    assert labels.show(np.array([0.9, 0.2]))[0] == "cat (90.0%)"
    text, values = labels.show(np.array([0.1, 0.2]))
    assert (text, values["labels"]) == ("none, most likely dog (20.0%)", [])
    assert number.show(np.array([12.5])) == ("price 12.5", {"name": "price", "number": 12.5})
