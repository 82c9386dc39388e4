"""Draw docs/images/packages.svg, the packages in the order of the import contracts in pyproject.toml."""

import html
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ROOT / "docs" / "images" / "packages.svg"
PURPOSES = {
    "attention": "attention modules and their costs",
    "automl": "the application",
    "automl.base": "errors, files, names, texts",
    "automl.callbacks": "events: progress, retention",
    "automl.cli": "commands and options",
    "automl.config": "settings, limits, devices",
    "automl.costs": "memory, latency, time",
    "automl.data": "sources, splits, caches, batches",
    "automl.export": "deployed models and their checks",
    "automl.integrations": "callbacks for loops of libraries",
    "automl.judge": "fresh seeds, statistics, the verdict",
    "automl.maps": "pictures of what modules attend to",
    "automl.report": "the page of a search",
    "automl.search": "the main job and its result, studies",
    "automl.storage": "folders and object stores, search.json",
    "automl.task": "the interface: batches, loss, metrics, deployment",
    "automl.tasks": "each task, found as those of other packages",
    "automl.tracking": "MLflow",
    "automl.training": "the training loop, optimiser, checkpoints",
    "automl.trials": "one trial on its devices, error classes",
    "backbones": "models, sites, insertion of a placement",
    "cluster": "connection to Ray, resources, manifests",
    "search": "configurations, spaces, samplers, scheduler, the study",
}
WIDTH, ROW, GAP, LEFT = 820, 34, 6, 60
OTHER, NEITHER, LINE = "#e8eef7", "#dff2e1", "#5b6b82"  # NEITHER: imports neither Ray nor MLflow


def read_contracts() -> tuple[list[str], list[list[str]], list[str]]:
    """Return the packages and the layers of automl, highest first, and the modules without Ray and MLflow."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {"containers" in contract: contract["layers"] for contract in contracts if "layers" in contract}
    (restricted,) = (
        rule["source_modules"] for rule in contracts if "ray" in rule.get("forbidden_modules", ())
    )
    return layers[False], [layer.split(" | ") for layer in layers[True] if layer != "__main__"], restricted


def rectangle(x: float, y: float, width: float, height: float, fill: str, dashed: bool = False) -> str:
    """Return a rectangle."""
    dash = " stroke-dasharray='5 3'" if dashed else ""
    size = f"width='{width:.0f}' height='{height:.0f}'"
    return f"<rect x='{x:.0f}' y='{y:.0f}' {size} rx='4' fill='{fill}' stroke='{LINE}'{dash}/>"


def write(x: float, y: float, text: str, bold: str = "") -> str:
    """Return a line of text after a word in bold."""
    head = f"<tspan font-weight='bold'>{bold}</tspan> " if bold else ""
    return f"<text x='{x:.0f}' y='{y:.0f}' fill='#222'>{head}{html.escape(text)}</text>"


def draw_package(x: float, y: float, width: float, package: str, restricted: list[str]) -> list[str]:
    """Return the box of a package, with its name and purpose."""
    fill = NEITHER if package in restricted else OTHER
    dashed = any(module.startswith(f"{package}.") for module in restricted)
    name = package.removeprefix("automl.")
    return [rectangle(x, y, width, ROW, fill, dashed), write(x + 10, y + 22, PURPOSES[package], name)]


def draw() -> str:
    """Return the diagram as SVG."""
    packages, layers, restricted = read_contracts()
    y = 2 * GAP
    height = ROW + len(layers) * (ROW + GAP) + GAP
    lines = [rectangle(LEFT, y, WIDTH - LEFT - GAP, height, "white")]
    lines.append(write(LEFT + 16, y + 22, PURPOSES["automl"], "automl"))
    y += ROW
    for layer in layers:
        width = (WIDTH - LEFT - 3 * GAP - len(layer) * GAP) / len(layer)
        for column, name in enumerate(layer):
            x = LEFT + 1.5 * GAP + column * (width + GAP)
            lines += draw_package(x, y, width, f"automl.{name}", restricted)
        y += ROW + GAP
    y += 2 * GAP
    for package in packages[1:]:
        lines += draw_package(LEFT, y, WIDTH - LEFT - GAP, package, restricted)
        y += ROW + GAP

    lines.append(
        f"<path d='M 40 {2 * GAP} V {y - 16} h 6 l -6 10 l -6 -10 h 6' fill='{LINE}' stroke='{LINE}'/>"
    )
    turned = write(0, 0, "a package imports those below it")
    lines.append(f"<g transform='translate(28 {y / 2 + 100:.0f}) rotate(-90)'>{turned}</g>")
    lines += [
        rectangle(LEFT, y + 4, 16, 16, NEITHER),
        write(LEFT + 24, y + 17, "imports neither Ray nor MLflow"),
    ]
    lines += [rectangle(LEFT + 260, y + 4, 16, 16, OTHER, dashed=True)]
    lines += [write(LEFT + 284, y + 17, "some of its modules import neither")]

    size = f"viewBox='0 0 {WIDTH} {y + 30}' width='{WIDTH}' height='{y + 30}'"
    font = "font-family='Helvetica, Arial, sans-serif' font-size='13'"
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {font}>\n<title>Packages and their imports</title>"
    )
    return "\n".join([head, "<rect width='100%' height='100%' fill='white'/>", *lines, "</svg>\n"])


if __name__ == "__main__":
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(draw(), encoding="utf-8")
