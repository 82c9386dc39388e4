"""Tools of agents, without a server: the schemas and command lines are those of the program."""

import re
from pathlib import Path
from typing import Any

import jsonschema
import mcp_types as types
import pytest
import typer.main

from automl.base.errors import InputError
from automl.cli.main import app
from automl.cli.mcp_server import LEFT_OUT, TOOLS, read_tools

ROOT = Path(__file__).parents[3]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
READ = read_tools(COMMANDS)
VALUES = {
    "string": "-x y",
    "['string', 'number']": "--trust",
    "integer": 3,
    "number": 0.5,
    "boolean": True,
    "array": ["a b", "--trust"],
}


def test_tools_have_the_words_of_their_commands(cli: Any) -> None:
    assert set(READ) >= {"referee", "search", "status", "report", "solve", "export"}
    assert "--trials=2" in READ["search"].to_words({"trials": 2})
    assert "--seed=2" in READ["search"].to_words({"seed": 2.0})
    assert "--max-params=5000000" in READ["solve"].to_words({"max_params": 5e6})
    assert "--no-sequential" in READ["referee"].to_words({"sequential": False})
    assert READ["referee"].to_words({"trust": False}) == ["referee", "--json"]
    code, out, _ = cli("skill")
    assert (code, out) == (0, (ROOT / "docs/agents/SKILL.md").read_text())


@pytest.mark.parametrize("name", READ)
def test_arguments_are_the_options(name: str) -> None:
    tool = READ[name]
    options = {each.name for each in COMMANDS[TOOLS[name][0]].params} - {*LEFT_OUT, TOOLS[name][1]}
    assert {each.name for each in tool.parameters.values()} == options
    jsonschema.Draft202012Validator.check_schema(tool.schema)
    assert all(each["description"] for each in tool.schema["properties"].values())
    assert tool.description


@pytest.mark.parametrize("name", READ)
def test_a_call_is_its_command_line(name: str) -> None:
    """Parse a call with every argument, one with none and one with null."""
    tool = read_tools(COMMANDS, outside=True)[name]
    properties = tool.schema["properties"]
    call = {key: VALUES[str(schema["type"])] for key, schema in properties.items()}
    jsonschema.validate(call, tool.schema)
    words = tool.to_words(call)
    parsed = COMMANDS[words[0]].make_context(words[0], words[1:]).params
    for key, parameter in tool.parameters.items():
        value = parsed[parameter.name]
        assert (str(value) if isinstance(value, Path) else value) == call[key], key
    assert parsed.get("as_json") in (True, None)
    assert tool.fixed is None or parsed[tool.fixed]
    assert tool.to_words({}) == tool.to_words(dict.fromkeys(tool.parameters))


@pytest.mark.parametrize("name", READ)
def test_hints_follow_from_the_options(name: str) -> None:
    tool = READ[name]
    hints = types.ToolAnnotations(**tool.hints)
    reads = name == "status"
    assert (hints.read_only_hint, hints.destructive_hint) == (reads, not reads)
    assert hints.open_world_hint == (name not in ("status", "report"))
    assert hints.idempotent_hint == (name in ("status", "report"))


def test_every_output_stays_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options are outputs if their texts name a file or folder, but for those that are only read."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "link").symlink_to(tmp_path)
    outside = ["..", "/tmp", "link/a", "~/a", "s3://bucket/a", "file:///tmp/a", "~nobody-knows/a"]
    for name, tool in READ.items():
        texts = {key: each["description"] for key, each in tool.schema["properties"].items()}
        paths = {key for key, text in texts.items() if re.match("(Folder|File|Drawing)", text)}
        reads = {"status", "solve", "export"} & {name} and {"storage"}
        assert paths - {"data", "protect", "cache", *reads} <= tool.written, name
        for key in tool.written:
            for value in outside:
                with pytest.raises(InputError, match="--allow-outside"):
                    tool.to_words({key: value})
            assert tool.to_words({key: "link/project/new/a.svg"})


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("status", {"serch": "a"}, "unknown argument of status 'serch'; choose from .*Did you mean 'search'"),
        ("referee", {"seeds": "ten"}, 'seeds of referee must be an integer; got "ten"'),
        ("referee", {"candidate": ["a", 1]}, "must be a list, each a text"),
        ("referee", {"metric": "a\0b"}, "zero byte"),
    ],
)
def test_a_bad_argument_has_one_message(name: str, call: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        READ[name].to_words(call)
