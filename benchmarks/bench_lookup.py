"""Summarise the recorded table of single modules on look-ups by colour, reliability first.

Reads `data/singles.parquet` (see `record_singles.py`) and writes, per module and site, the mean and the range
of the accuracy over seeds. Takes a second.
"""

import numpy as np
import record_singles
from harness import write_values
from reliability import reliability


def main() -> None:
    rows = [row for row in record_singles.read() if row["table"] == "lookup"]
    names = record_singles.names("lookup")
    found = {(row["placement"], row["seed"]): 100 * row["accuracy"] for row in rows}
    seeds = [s for s in range(record_singles.SEEDS) if all((name, s) in found for name in names)]
    scores = np.array([[found[name, seed] for seed in seeds] for name in names])
    audit = reliability(scores)
    cells = {
        name: [round(float(value), 1) for value in (own.mean(), own.min(), own.max())]
        for name, own in zip(names, scores, strict=True)
    }
    table = [
        {"site": site, **{kind: cells[f"{kind}@{site}"] for kind in kinds(names)}}
        for site in record_singles.SITES["lookup"]
    ]
    values = {"seeds": len(seeds), "plain": cells["plain"], "table": table}
    write_values("lookup", {**values, "reliability": {**vars(audit), "ranks": audit.ranks}})
    for row in table:
        print(row)


def kinds(names: list[str]) -> list[str]:
    return list(dict.fromkeys(name.partition("@")[0] for name in names if "@" in name))


if __name__ == "__main__":
    main()
