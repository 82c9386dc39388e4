"""Maps of the strongest module of the best finalist, in six inputs of the test split."""

from collections.abc import Sequence

from automl.base.command_line import format_command
from automl.confirm.wording import CLOSED_GATE
from automl.maps.examples import MapExamples, read_examples
from automl.report.answered import finalist_folders
from automl.report.map_pictures import MapPictures, describe
from automl.report.page import Section
from automl.report.plot import Plot, Table, absent
from automl.report.read import SearchData

NAME, TITLE = "attention", "Attention maps"
TASKS = ("image-classification", "sequence-classification", "code-retrieval")

MEANINGS = {
    "positions": "how much it takes from each position, the mean over all positions and heads",
    "global": "how much each position adds to what all positions read",
    "channels": "its absolute products with each position, the mean over all positions",
    "rescaling": "the factors that it multiplies positions by",
}
NOTE = (
    "Dark blue is 0, yellow the largest weight of each picture. The inputs are the first of each class of "
    "the test split, whatever their maps. A weight is no importance: it says what the module reads, not what "
    "the answer depends on."
)


def attention(search: SearchData) -> Sequence[Section]:
    """Return the section with the maps. There is none for tasks whose inputs are not drawn."""
    if not search.trials or search.trials[0].config.task not in TASKS:
        return []
    return [
        Section(
            id=NAME,
            title="What the strongest module looks at",
            lead="Six inputs of the test split, which the module was not trained on.",
            plots=[_plot(search)],
        )
    ]


def _plot(search: SearchData) -> Plot:
    if not search.verdicts:
        command = format_command("confirm --search", search.metadata.name, search.metadata.settings.storage)
        return absent(NAME, TITLE, f"A confirmation records the maps of its finalists: {command}")
    for folder in finalist_folders(search, search.verdicts[-1]):
        if (examples := read_examples(folder)) is not None:
            return _drawn(examples)
    return absent(
        NAME,
        TITLE,
        "The latest confirmation recorded no maps: its finalist has no module with weights, or it was made "
        "before they were recorded.",
    )


def _drawn(examples: MapExamples) -> Plot:
    meaning = "the factors of its channels" if examples.of_channels else MEANINGS[examples.kind]
    chosen = "contrast" if examples.gate is None else f"|gate|, {abs(examples.gate):.2g}"
    return Plot(
        name=NAME,
        title=f"{TITLE} of {examples.spec} @ {examples.site}",
        figure=MapPictures(charts=(), data={}, wide=True, examples=examples),
        says=(
            f"{len(examples.names)} inputs. This module of the leading finalist has the largest {chosen}. "
            f"The colours are {meaning}."
        ),
        note=NOTE,
        warnings=(
            ["The gate is near 0, so the module hardly changes its input, whatever it reads."]
            if examples.gate is not None and abs(examples.gate) < CLOSED_GATE
            else []
        ),
        table=Table(
            columns=["input", "largest weight", "mean weight", "where the largest is"],
            rows=[
                [name, float(heat.max()), float(heat.mean()), describe(heat, examples.of_channels)]
                for name, heat in zip(examples.names, examples.heats, strict=True)
            ],
        ),
    )
