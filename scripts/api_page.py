"""Makes docs/api.md from the docstrings of the names of `automl`: `make api-page`."""

import inspect
import re
from pathlib import Path
from typing import Any

import automl

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Example")
TOP = """# API reference

<!-- Made by scripts/api_page.py from the docstrings. Change these, and run `make api-page`. -->

`import automl` gives these names, and [stability.md](reference/stability.md) says what stays stable.
[guide.md](guide.md) explains the steps.
"""


def groups() -> dict[str, list[str]]:
    """Return the names in the groups that the docstring of `automl` has."""
    lines = re.findall(r"^(\w+): +(\w+(?:,\s+\w+)*)$", automl.__doc__ or "", re.M)
    return {title: re.findall(r"\w+", names) for title, names in lines}


def page() -> str:
    """Return the whole page."""
    parts = [TOP]
    for title, names in groups().items():
        parts.append(f"## {title}\n")
        parts += [entry(name, getattr(automl, name)) for name in names]
    return "\n".join(parts)


def entry(name: str, value: Any) -> str:
    """Return the part of the page about one name."""
    lines = [f"### `automl.{name}`\n"]
    if not inspect.isclass(value):
        lines.append(f"```python\n{signature(name, value)}\n```\n")
    lines.append(markdown(inspect.getdoc(value) or ""))
    for method, function in methods(value):
        lines.append(f"#### `{method}`\n\n{markdown(inspect.getdoc(function) or '')}")
    return "\n".join(lines)


def signature(name: str, function: Any) -> str:
    """Return the call with the defaults, and without types, which the text tells."""
    shown = []
    starred = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        shown.append(f"{parameter.name}{default}")
    return f"{name}({', '.join(shown)})" if len(shown) < 20 else f"{name}(**settings)"


def methods(value: Any) -> list[tuple[str, Any]]:
    """Return the methods of a class whose docstrings have sections, in the order of their definition."""
    if not inspect.isclass(value):
        return []
    return [
        (name, one)
        for name, one in vars(value).items()
        if inspect.isfunction(one) and re.search(r"^(Args|Returns):", inspect.getdoc(one) or "", re.M)
    ]


def markdown(text: str) -> str:
    """Return a docstring of Google's style as Markdown."""
    lines: list[str] = []
    section = ""
    for line in text.splitlines():
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            section = line.rstrip(":")
            lines += [f"**{section}**", ""]
        elif section == "Example":
            lines.append(line)
        elif section in ("Args", "Attributes", "Raises") and (m := re.match(r" {4}([\w*]+): (.*)", line)):
            lines.append(f"- `{m[1]}`: {m[2]}")
        elif section in ("Args", "Attributes", "Raises") and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line.strip())
    return fenced("\n".join(lines)).rstrip() + "\n"


def fenced(text: str) -> str:
    """Put what follows the word Example into a block of code, with its words before that."""
    before, mark, example = text.partition("**Example**\n\n")
    if not mark:
        return text
    example = inspect.cleandoc("\n" + example)
    words, _, code = example.partition(">>> ")
    return f"{before}{mark}{words}```pycon\n>>> {code.rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} {len(page()) / 1e3:.0f} kB")
