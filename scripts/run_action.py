"""Run the steps of `action.yml` on this machine, as GitHub runs those of a composite action.

    python scripts/run_action.py --input command="python train.py --seed {seed}" --input metric="acc=(.*)"

compares HEAD^1 and HEAD of the repository around the current folder, and prints the summary. Expressions may
name inputs, outputs of steps and the folder of the action. Steps with `uses` or `if` are refused.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Result of a run of the action: its exit code, outputs, summary, and what it printed."""

    code: int
    outputs: Mapping[str, str]
    summary: str
    printed: str


def run_action(
    inputs: Mapping[str, str], folder: Path, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run the steps in `folder`, the workspace, until one fails."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    if unknown := sorted(inputs.keys() - action["inputs"].keys()):
        raise ValueError(
            f"the action has no input {', '.join(unknown)}; choose from {', '.join(action['inputs'])}"
        )
    values = {
        f"inputs.{name}": str(declared.get("default", "")) for name, declared in action["inputs"].items()
    }
    values |= {f"inputs.{name}": value for name, value in inputs.items()}
    values["github.action_path"] = str(ROOT)
    code, printed = 0, ""
    with tempfile.TemporaryDirectory(prefix="action-") as temporary:
        files = {name: Path(temporary, name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        own = {"RUNNER_TEMP": temporary, "GITHUB_WORKSPACE": str(folder), "GITHUB_ACTIONS": "true"}
        own |= {name: str(file) for name, file in files.items()}
        for i, step in enumerate(action["runs"]["steps"]):
            if refused := {"uses", "if"} & step.keys() or "${{" in step["run"]:
                raise ValueError(f"step {i} cannot run here: {refused}")
            for file in files.values():
                file.touch()
            script = Path(temporary, f"{i}.sh")
            script.write_text(step["run"], encoding="utf-8")
            variables = {name: _fill(text, values) for name, text in step.get("env", {}).items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
                cwd=folder / _fill(step.get("working-directory", "."), values),
                env={**(os.environ if environment is None else environment), **own, **variables},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            code, printed = done.returncode, printed + done.stdout
            for line in files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines():
                name, _, value = line.partition("=")
                values[f"steps.{step.get('id', '')}.outputs.{name}"] = value
            if code:
                break
        outputs = {name: _fill(each["value"], values) for name, each in action["outputs"].items()}
        summary = files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
    return Ended(code=code, outputs=outputs, summary=summary, printed=printed)


def _fill(text: str, values: Mapping[str, str]) -> str:
    filled = EXPRESSION.sub(lambda match: values.get(match[1], ""), str(text))
    if "${{" in filled:
        raise ValueError(f"{text!r} has an expression that is not known here")
    return filled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE")
    pairs = (text.partition("=") for text in parser.parse_args().input)
    try:
        ended = run_action({name: value for name, _, value in pairs}, Path.cwd())
    except ValueError as error:
        parser.error(str(error))
    print(ended.printed, file=sys.stderr)
    print(ended.summary)
    print("\n".join(f"{name}: {value}" for name, value in ended.outputs.items()))
    sys.exit(ended.code)


if __name__ == "__main__":
    main()
