"""The picture of `bench_placements.py`, docs/placements.png, and its table as Markdown on standard output."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from harness import RESULTS
from PIL import Image

FILE = Path(__file__).parents[1] / "docs" / "placements.png"
SHOWN = {  # Okabe and Ito's colours, which most colour-blind people tell apart
    "ours": "#d55e00",
    "tpe": "#0072b2",
    "tpe-asha": "#56b4e9",
    "stock": "#009e73",
    "gp": "#cc79a7",
    "random": "#808080",
}


def rows(tables: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for table in tables.values():
        can = "" if table["reliability"]["ranks"] else " (cannot rank)"
        for name in SHOWN:
            if name not in table["methods"]:
                continue
            method = table["methods"][name]
            columns = (method["trainings"], method["regret"], method["regret_interval"])
            for trainings, regret, (low, high) in zip(*columns, strict=True):
                found.append(
                    {
                        "table": table["says"] + can,
                        "method": method["title"],
                        "trainings": trainings,
                        "regret": regret,
                        "low": low,
                        "high": high,
                    }
                )
    return found


def picture(tables: dict[str, Any]) -> alt.FacetChart:
    """Mean regret by trainings with its 95 % interval, a panel a table."""
    titles = {name: m["title"] for t in tables.values() for name, m in t["methods"].items()}
    there = [name for name in SHOWN if name in titles]
    base = alt.Chart().encode(
        x=alt.X("trainings:Q", scale=alt.Scale(type="log"), title="trainings"),
        color=alt.Color(
            "method:N",
            scale=alt.Scale(domain=[titles[n] for n in there], range=[SHOWN[n] for n in there]),
            legend=alt.Legend(orient="bottom", title=None),
        ),
    )
    line = base.mark_line().encode(y=alt.Y("regret:Q", title="true regret"))
    band = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
    panel = alt.layer(band, line, data=alt.Data(values=rows(tables))).properties(width=240, height=170)
    order = list(dict.fromkeys(row["table"] for row in rows(tables)))
    return panel.facet(alt.Facet("table:N", sort=order, title=None), columns=2).resolve_scale(
        y="independent", x="shared"
    )


def markdown(tables: dict[str, Any]) -> str:
    """Of each table its reliability, and the trainings that each method needs."""
    titles = {name: m["title"] for t in tables.values() for name, m in t["methods"].items()}
    lines = [
        "| table | F | split-half reliability | " + " | ".join(titles.values()) + " |",
        "|---" * (3 + len(titles)) + "|",
    ]
    for table in tables.values():
        cells = []
        for name in titles:
            method = table["methods"].get(name)
            cells.append(
                ""
                if method is None
                else str(method["needed"])
                if method["needed"]
                else f"more than {method['trainings'][-1]}"
            )
        told = table["reliability"]
        lines.append(
            f"| {table['says']} | {told['f']:.2f} | {told['split_half']:.2f} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def main() -> None:
    tables = json.loads((RESULTS / "placements-cpu.json").read_text())["tables"]
    drawn = Image.open(BytesIO(vl_convert.vegalite_to_png(picture(tables).to_dict(), scale=1.5)))
    drawn.convert("RGB").quantize(128).save(FILE, optimize=True)  # a tenth of the size
    print(markdown(tables))


if __name__ == "__main__":
    main()
