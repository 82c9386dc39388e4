"""Write the faults of `make test-hosts` to results/hosts-cpu.json, and print them as a table.

    HOSTS_TIMES=10 HOSTS_RECORD=faults.jsonl make test-hosts
    python benchmarks/record_hosts.py faults.jsonl

A row is a fault: how often it was tried, the trials that were lost or doubled, the searches that ended in
another way than the undisturbed one, epochs that were trained again, and the seconds that the trial lost that
waited longest. Of these it has the median and the largest, and none without a search that ended.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from harness import write_values

TRIALS = 6  # of each search


def summarise(fault: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    lost = [line["lost"] for line in lines if line["complete"] == TRIALS]
    return {
        "fault": fault,
        "tried": len(lines),
        "trials": TRIALS * len(lines),
        "lost": sum(TRIALS - line["complete"] for line in lines),
        "doubled": sum(line["doubled"] for line in lines),
        "flawed": sum(bool(line["flaws"]) for line in lines),
        "repeated": [median(line["repeated"] for line in lines), max(line["repeated"] for line in lines)],
        "seconds": [median(lost), max(lost)] if lost else [],
        "runs": [{**line, "flaws": len(line["flaws"])} for line in lines],
    }


def main() -> None:
    faults: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in sys.argv[1:]:
        for line in Path(file).read_text().splitlines():
            faults[json.loads(line)["fault"]].append(json.loads(line))
    rows = [summarise(fault, lines) for fault, lines in faults.items()]
    write_values("hosts", {"rows": rows})
    for row in rows:
        cells = [row[key] for key in ("fault", "tried", "lost", "doubled", "flawed")]
        cells += [f"{value:g}" for value in (*row["repeated"], *row["seconds"])]
        print("|", " | ".join(map(str, cells)), "|")


if __name__ == "__main__":
    main()
