"""Write the page of findings on language models from their records. `language_findings.py` measures them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "language-findings.md"
RECORDS = ROOT / "benchmarks" / "results" / "language-findings"
FULL = "full"  # full attention, the layer of a plain decoder


def read_records(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return all records, those of `names` first."""
    files = sorted(RECORDS.glob("*.json"), key=lambda file: file.stem)
    order = {name: i for i, name in enumerate(names)}
    files.sort(key=lambda file: order.get(file.stem.partition("-search")[0], len(order)))
    return [json.loads(file.read_text()) for file in files]


def summarise(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return the models that the searched placements do not beat: how many have none, and a table."""
    every, cheap = 0, 0
    lines = [
        "| finding | searched layers | not beaten, with as many full layers or fewer | beats all full | p "
        "| p, Holm |",
        "|---|---|---|---|---|---|",
    ]
    adjusted = adjust([record["p"] for record in records])
    for record, p_holm in zip(records, adjusted, strict=True):
        (searched,) = (row for row in record["rows"] if row["searched"])
        compared = [row for row in record["rows"] if row["interval"] is not None]
        least = searched["layers"].count(FULL)
        not_beaten = [row for row in compared if row["interval"][0] <= 0]
        names = [row["variant"].split(":")[0] for row in not_beaten if row["layers"].count(FULL) <= least]
        full = [row for row in compared if set(row["layers"]) == {FULL}]
        every, cheap = every + (not not_beaten), cheap + (not names)
        beaten = "not compared" if not full else "no" if any(row in not_beaten for row in full) else "yes"
        placement = searched["variant"].partition(" (")[0]
        shown = ", ".join(dict.fromkeys(names)) or "none"
        lines.append(
            f"| {record['title']} | {placement} | {shown} | {beaten} | {record['p']:.2g} | {p_holm:.2g} |"
        )
    counts = (
        f"The searched placement beats every control in {every} of {len(records)} findings, and every "
        f"control with as many full layers or fewer in {cheap}."
    )
    remaining = sum(p_holm <= 0.05 for p_holm in adjusted)
    family = (
        f"p is of the comparison with the baseline. Six seeds give no smaller p than {2 / 2**6:.2g}, and "
        f"eight none below {2 / 2**8:.2g}, however large the difference: such a p says that all seeds agree. "
        f"It is not corrected for the {len(records)} findings of this page. The last column is, by Holm's "
        f"procedure: {remaining} of {len(records)} findings remain below 0.05."
    )
    return [counts, "", family, "", *lines, ""]


def adjust(p_values: Sequence[float]) -> list[float]:
    """Return p-values that Holm's procedure corrects for their number."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def make_page(records: Sequence[dict[str, Any]]) -> str:
    lines = [
        "# Findings on the layers of language models",
        "",
        "![Layers that the searches chose, and their lead over each control](../language-findings.svg)",
        "",
        "Made by `make language-findings` with equal training time. The baseline is the best model whose "
        "layers are all of one kind. Other models have the searched hyperparameters. A positive difference "
        "favours the searched placement, whose hours are those of the search and of all seeds. Where a "
        "control has the layers of another row, it is left out. Each seed has another random placement with "
        "as many full layers; older findings have one for all seeds. A verdict is `cannot tell` where times "
        "were not equal for certain, as in trainings of seconds. `all full` keeps the layers of a trained "
        "decoder.",
        "",
        *summarise(records),
        *(line for record in records for line in write_case(record)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def write_case(record: dict[str, Any]) -> Iterator[str]:
    """Yield a section: the verdict, and a row for each variant."""
    digits, scale = (".1f", 100) if record["unit"] == "points" else (".3f", 1)
    yield f"## {record['title']}"
    yield ""
    yield f"**{record['headline']}.** {record['seeds']} paired seeds, p = {record['p']:.2g}; "
    yield f"{record['trials']} trials, {record['hours']:.2f} core hours on {record['machine']}."
    yield ""
    if note := record.get("note"):
        yield from (note, "")
    yield f"| variant | {record['metric']} | difference of the searched placement | 95 % CI | time ratio |"
    yield "|---|---|---|---|---|"
    for row in record["rows"]:
        difference = interval = ""
        if row["interval"] is not None:
            low, high = row["interval"]
            difference, interval = f"{row['lead']:+{digits}}", f"{low:+{digits}} to {high:+{digits}}"
        shown = "" if row["time"] is None else f"{row['time']:.2f}"
        yield f"| {row['variant']} | {scale * row['score']:{digits}} | {difference} | {interval} | {shown} |"
    yield ""
