"""Draw docs/placements.png from the results of `bench_placements.py`, and print their table as Markdown."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from harness import RESULTS
from PIL import Image

FILE = Path(__file__).parents[1] / "docs" / "placements.png"
SHOWN = {  # Okabe and Ito's colours, which most colour-blind people can distinguish
    "ours": "#d55e00",
    "tpe": "#0072b2",
    "tpe-group": "#e69f00",
    "tpe-asha": "#56b4e9",
    "tpe-pasha": "#000000",
    "stock": "#009e73",
    "gp": "#cc79a7",
    "random": "#808080",
}


def make_rows(tables: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for table in tables.values():
        note = "" if table["reliability"]["ranks"] else " (cannot rank)"
        for name in SHOWN:
            if name not in table["methods"]:
                continue
            method = table["methods"][name]
            columns = (method["trainings"], method["regret"], method["regret_interval"])
            for trainings, regret, (low, high) in zip(*columns, strict=True):
                rows.append(
                    {
                        "table": table["says"] + note,
                        "method": method["title"],
                        "trainings": trainings,
                        "regret": regret,
                        "low": low,
                        "high": high,
                    }
                )
    return rows


def draw(tables: dict[str, Any]) -> alt.FacetChart:
    """Return the mean regret by trainings with its 95 % interval, one panel per table."""
    titles = {name: m["title"] for t in tables.values() for name, m in t["methods"].items()}
    shown = [name for name in SHOWN if name in titles]
    base = alt.Chart().encode(
        x=alt.X("trainings:Q", scale=alt.Scale(type="log"), title="trainings"),
        color=alt.Color(
            "method:N",
            scale=alt.Scale(domain=[titles[n] for n in shown], range=[SHOWN[n] for n in shown]),
            legend=alt.Legend(orient="bottom", title=None),
        ),
    )
    line = base.mark_line().encode(y=alt.Y("regret:Q", title="true regret"))
    band = base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q")
    panel = alt.layer(band, line, data=alt.Data(values=make_rows(tables))).properties(width=240, height=170)
    order = list(dict.fromkeys(row["table"] for row in make_rows(tables)))
    return panel.facet(alt.Facet("table:N", sort=order, title=None), columns=2).resolve_scale(
        y="independent", x="shared"
    )


def markdown(tables: dict[str, Any]) -> str:
    """Return the reliability of each table, and the number of trainings that each method needs."""
    titles = {name: m["title"] for t in tables.values() for name, m in t["methods"].items()}

    def needed(table: dict[str, Any], name: str) -> str:
        method = table["methods"].get(name)
        if method is None:
            return ""
        return str(method["needed"] or f"> {method['trainings'][-1]}")

    rows = {
        "F": [f"{table['reliability']['f']:.2f}" for table in tables.values()],
        "split-half reliability": [f"{table['reliability']['split_half']:.2f}" for table in tables.values()],
        **{title: [needed(table, name) for table in tables.values()] for name, title in titles.items()},
    }
    return "\n".join(
        [
            *(f"- `{name}`: {table['says']}" for name, table in tables.items()),
            "",
            f"| | {' | '.join(f'`{name}`' for name in tables)} |",
            "|---" * (1 + len(tables)) + "|",
            *(f"| {title} | {' | '.join(cells)} |" for title, cells in rows.items()),
        ]
    )


def main() -> None:
    tables = json.loads((RESULTS / "placements-cpu.json").read_text())["tables"]
    image = Image.open(BytesIO(vl_convert.vegalite_to_png(draw(tables).to_dict(), scale=1.5)))
    image.convert("RGB").quantize(128).save(FILE, optimize=True)  # a tenth of the size
    print(markdown(tables))


if __name__ == "__main__":
    main()
