"""The documentation site builds without a warning, is complete, and fetches nothing when it is read."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import playwright
import pytest
import typer.main

import automl
from automl.cli.main import app

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
ELSEWHERE = re.compile(r"(https?:)?//")
LINKS = ("canonical", "prev", "next", "alternate")  # of `link`: named, not loaded


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, into an empty folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


class Resources(HTMLParser):
    """The addresses that a page loads when it is read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.styles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if tag in LOADED and values.get("rel") not in LINKS:
            self.addresses.append(values.get(LOADED[tag], ""))
        self.styles.append(values.get("style", ""))


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        resources = Resources(page.read_text())
        assert any(address.endswith(".js") for address in resources.addresses)
        assert [address for address in resources.addresses if ELSEWHERE.match(address)] == []
        assert "http" not in "".join(resources.styles)
    for path in site.rglob("*.css"):
        text = path.read_text()
        addresses = re.findall(r"url\(\s*[\"']?([^\"')]+)", text) + re.findall(
            r"@import\s+[\"']([^\"']+)", text
        )
        assert [address for address in addresses if ELSEWHERE.match(address)] == []
    # Markdown shows a table or a list as text where its indentation is not 4 spaces for each level.
    for page in site.rglob("*.html"):
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(), flags=re.S)
        for paragraph in re.findall(r"<(?:p|li)>(.*?)</(?:p|li)>", text, re.S):
            assert not re.search(r"^\s*([-*] |\d\. |\|)", paragraph, re.M), (page.name, paragraph)
    assert "run_search" in (site / "search" / "search_index.js").read_text()
    scripts = Resources((site / "how-to" / "search.html").read_text()).addresses
    assert "../javascripts/iframe-worker.js" in scripts
    page = (site / "reference" / "cli.html").read_text()
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    sections = dict(re.findall(r'<h2 id="automl-([\w-]+)">(.*?)(?=<h2 |</article>)', page, re.S))
    assert list(sections) == list(commands)
    for name, command in commands.items():
        options = {flag for option in command.params for flag in option.opts if flag.startswith("-")}
        assert read_table(sections[name]) >= options - {"--help-all"}


# What newcomers searched for, by the page that answers it.
QUESTIONS = {
    "how-to/labels-and-numbers": "several labels per image, multilabel, multi-label, regression",
    "how-to/freeze-layers": "freeze layers, freezing backbone",
    "how-to/tensorboard": "tensorboard",
    "how-to/confirm": "undecided what to do, more seeds, equal epochs, another size",
    "reference/image-data": "hugging face dataset",
}


def test_words_of_newcomers_find_their_page(site: Path) -> None:
    """The site's own search has it among its first three hits."""
    node = shutil.which("node") or str(Path(playwright.__file__).parent / "driver" / "node")
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    asked = [(words, f"{page}.html") for page, text in QUESTIONS.items() for words in text.split(", ")]
    script, index = Path(__file__).with_name("search_site.js"), site / "search" / "search_index.json"
    command = [node, script, worker, index, *(words for words, _ in asked)]
    hits = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    assert [each for each, pages in zip(asked, hits, strict=True) if each[1] not in pages] == []


def read_table(text: str) -> set[str]:
    """Return the options in the first column of a command's tables."""
    cells = re.findall(r"<tr>\s*<td>(.*?)</td>", text, re.S)
    return set(re.findall(r"<code>(--?[\w-]+)</code>", "".join(cells)))


@pytest.mark.parametrize("name", automl.__all__)
def test_every_exported_name_is_on_the_page_of_the_api(site: Path, name: str) -> None:
    page = (site / "reference" / "api.html").read_text()
    assert f'id="automl.{name}"' in page
