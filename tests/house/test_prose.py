"""`scripts/prose.py` runs, and pre-commit runs what make does."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))


def test_command_line():
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
