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
        names = [label(row) for row in not_beaten if row["layers"].count(FULL) <= least]
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
        f"p is of the comparison with the baseline alone. Six seeds give no smaller p than {2 / 2**6:.2g}, "
        f"and eight none below {2 / 2**8:.2g}, however large the difference: such a p says that all seeds "
        f"agree. Neither p nor an interval is corrected for the {len(records)} findings of this page. The "
        f"last column is p by Holm's procedure: {remaining} of {len(records)} findings remain below 0.05."
    )
    return [counts, "", family, "", *lines, ""]


def label(row: dict[str, Any]) -> str:
    """Return what a row is, without its layers."""
    kind, longer = row["variant"].split(":")[0], row.get("longer", 1)
    return kind if longer == 1 else f"{kind}, {longer:g} times as long"


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
        "layers are all of one kind. If the searched placement leads and may have taken more time, it must "
        "also beat the baseline [trained longer](verdicts.md). Other models have the searched "
        "hyperparameters. A positive difference favours the searched placement, whose hours are those of the "
        "search and of all seeds. A model without an interval has trained only with the seeds that choose "
        "the baseline. Where a control has the layers of another row, it is left out. Each seed has another "
        "random placement with as many full layers; older findings have one for all seeds. `all full` keeps "
        "the layers of a trained decoder.",
        "",
        *describe_earlier_rule(records),
        *summarise(records),
        *(line for record in records for line in write_case(record)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def describe_earlier_rule(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield how many verdicts are from before opponents trained longer. Their records lack single scores."""
    if count := sum("scores" not in row for record in records for row in record["rows"] if row["searched"]):
        yield f"{count} of {len(records)} verdicts are from an earlier rule. It answered `cannot tell` to "
        yield "any gain that may have come from more time, however large."
        yield ""


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
        difference = "" if row["lead"] is None else f"{row['lead']:+{digits}}"
        interval = "" if row["interval"] is None else "{:+{d}} to {:+{d}}".format(*row["interval"], d=digits)
        shown = "" if row["time"] is None else f"{row['time']:.2f}"
        yield f"| {row['variant']} | {scale * row['score']:{digits}} | {difference} | {interval} | {shown} |"
    yield ""
