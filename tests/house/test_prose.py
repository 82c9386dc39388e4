"""`scripts/prose.py` reports the faults of code and documents, and nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import prose  # noqa: E402


def rules(faults):
    return [(fault.line, fault.rule) for fault in sorted(faults)]


@pytest.mark.parametrize(
    ("text", "is_fault"),
    [
        ("Of the trials, the best.", True),
        ("What `run` returns.", True),
        ("\n    None where it is missing.\n", True),
        ("`How` long it takes.", True),
        ("Return what `run` wrote.", False),
        ("Ofen heats.", False),
        ("Assert that it runs.", False),
    ],
)
def test_first_word_of_a_docstring(text, is_fault):
    source = f'class A:\n    def f(self):\n        """{text}"""\n'
    assert rules(prose.check_python("a.py", source)) == [(3, "docstring-start")] * is_fault


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "def f(given): pass",
        "f = lambda said: 1",
        "class Arm: pass",
        "class A:\n    worth: float",
        "def _told(): pass",
        "self.made = 1",
        "TRUNKS = 1",
        "arm_set = 1",
        "import numpy as places",
        "match x:\n    case {'a': way}: pass",
        'def f():\n    """Return x.\n\n    >>> found = f()\n    """',
    ],
)
def test_listed_names_are_reported(code):
    assert [fault.rule for fault in prose.check_python("a.py", code)] == ["name"]


@pytest.mark.parametrize("code", ["one_hot = 1", "alarm = 1", "print(found)", "f(found=1)", "x = y.said"])
def test_ordinary_names_are_accepted(code):
    assert not list(prose.check_python("a.py", code))


def test_words_sentences_and_names_are_checked():
    code = (
        "def test_what_is_not_known(): pass\ndef test_mistakes_are_told(): pass\ndef test_a_fault(): pass\n"
    )
    assert rules(prose.check_python("a.py", code)) == [(1, "test-name"), (2, "name")]
    code = '''"""Make a list.

The search goes on, which is told.
"""
x = "the trunk of it"
y = f"{x}: arm {x} of it"
z = "trunk"  # one's own
w = "it goes on the disk"
'''
    assert rules(prose.check_python("a.py", code)) == [
        (3, "docstring-word"),
        (3, "docstring-word"),
        (5, "message-word"),
        (6, "message-word"),
        (7, "comment-word"),
    ]
    long = "word " * prose.MAX_SENTENCE
    text = f"""# Arms

A page with `trunk` as code.

    trunk in a block

```
trunk
```

- {long}end.
- Word {long[10:]}end. Word {long[10:]}end.

| a | b |
|---|---|
| {long} end | trunk |

Two lines
with a [trunk](page.md).
"""
    assert rules(prose.check_markdown("a.md", text)) == [
        (1, "docs-word"),
        (11, "long-sentence"),
        (16, "docs-word"),
        (19, "docs-word"),
    ]
    assert rules(prose.check_markdown("a.md", "!!! note\n\n    The trunk.\n")) == [(3, "docs-word")]


def test_command_line(tmp_path):
    command = [sys.executable, ROOT / "scripts/prose.py"]
    clean = subprocess.run([*command, "scripts/prose.py"], cwd=ROOT, capture_output=True, text=True)
    assert (clean.returncode, clean.stdout) == (0, "")
    table = subprocess.run(
        [*command, "--count", "scripts/prose.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert table.returncode == 0
    assert "| name | 0 |" in table.stdout


def test_pre_commit_runs_the_checks_of_make():
    makefile = (ROOT / "Makefile").read_text()
    commands = set()
    for target in ("check", "types", "style", "docs", "prose"):
        (recipe,) = re.findall(rf"^{target}: setup\n((?:\t.*\n)+)", makefile, re.M)
        commands |= {
            line.strip().removesuffix(" .").replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()
        }
    commands = {command for command in commands if "$(MAKE)" not in command}
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert {hook["entry"].removeprefix("env ") for hook in repository["hooks"]} == commands
