"""`automl mcp` over real pipes, with the client of the package `mcp`."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import typer.main
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from automl.cli.main import app
from automl.cli.mcp_server import read_tools
from tests.helpers.killable import AUTOML
from tests.helpers.planted_modules import plant_modules

pytestmark = pytest.mark.usefixtures("cache")
MARKER = "modules of the folder that have run"
PYTHON = f"{shlex.quote(sys.executable)} -P -S"
SCORE = """
import random, sys, time
seed, gain, pause = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
open("runs", "a").write(f"{gain} {seed}\\n")
time.sleep(pause)
print("acc=%r" % (gain + random.Random(seed).gauss(0, 1) + random.Random(f"{gain}{seed}").gauss(0, 0.1)))
"""
NOISY = """
import atexit, os
from automl import Callback as Base
class Callback(Base):
    pass
print("at import")
os.write(1, b"at import")
atexit.register(lambda: (print("at exit"), os.write(1, b"at exit"), os.system("echo at exit")))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path, empty_store: Path) -> Path:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    plant_modules(tmp_path / MARKER)
    (tmp_path / "score.py").write_text(SCORE)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/noisy.py").write_text(NOISY)
    return tmp_path


def call(gain: int, pause: float, name: str) -> dict[str, Any]:
    commands = [f"{PYTHON} score.py {{seed}} {each} {pause}" for each in (0, gain)]
    return {
        "baseline": commands[0],
        "candidate": commands[1:],
        "callback": ["own/noisy.py:Callback"],
        **{"metric": "acc=(.*)", "name": name, "seeds": 6, "any_time": True},
    }


@asynccontextmanager
async def connect(folder: Path) -> AsyncIterator[Client]:
    database = f"sqlite:///{folder / 'mlflow.db'}"
    parameters = StdioServerParameters(
        command=AUTOML[0],
        args=[*AUTOML[1:], "mcp"],
        env={**os.environ, "MLFLOW_TRACKING_URI": database},
        cwd=folder,
    )
    async with Client(stdio_client(parameters)) as client:
        yield client


def talk(conversation: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with anyio.fail_after(200):
            await conversation()

    anyio.run(limited)


def commands_in(folder: Path) -> list[psutil.Process]:
    """Return the processes in a folder that run a command of a tool."""
    listed = []
    for process in psutil.process_iter():
        try:
            if "automl.cli.attended" in process.cmdline() and process.cwd() == str(folder):
                listed.append(process)
        except psutil.Error:
            pass
    return listed


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await anyio.sleep(0.1)


@pytest.mark.slow("a server for agents")
def test_a_client_lists_and_calls(folder: Path) -> None:
    lines: list[str] = []

    async def keep(progress: float, total: float | None, message: str | None) -> None:
        lines.append(str(message))

    async def conversation() -> None:
        async with connect(folder) as client, connect(folder) as other:
            listed = (await client.list_tools()).tools
            tools = read_tools(typer.main.get_command(app).commands)
            assert {tool.name: tool.input_schema for tool in listed} == {
                name: tool.schema for name, tool in tools.items()
            }
            for tool in listed:
                assert tool.annotations.model_dump(by_alias=False).items() >= tools[tool.name].hints.items()
            async with anyio.create_task_group() as group:
                group.start_soon(ask_for_what_is_missing, other)
                answer = await client.call_tool("referee", call(9, 0, "mine"), progress_callback=keep)
            value = answer.structured_content
            assert (answer.is_error, value["exit_code"]) == (False, 0), value["text"]
            assert value["result"]["winner"] == "candidate"
            assert any("seed" in line for line in lines)
            assert lines[-1] in value["text"]
            status = (await other.call_tool("status", {"search": "mine"})).structured_content
            assert (status["exit_code"], status["result"]["outcome"]) == (0, "better")

    async def ask_for_what_is_missing(client: Client) -> None:
        for name, arguments, message in (
            ("status", {"search": "none"}, "no search called 'none'"),
            ("status", {"serch": "none"}, "unknown argument of status 'serch'"),
            ("referee", {"seeds": "six"}, "must be an integer"),
            ("referee", {**call(9, 0, "mine"), "storage": "/tmp/elsewhere"}, "--allow-outside"),
            ("shell", {}, "unknown tool"),
        ):
            answer = await client.call_tool(name, arguments)
            assert (answer.is_error, answer.structured_content["exit_code"]) == (True, 2)
            assert message in answer.content[0].text
            assert "Traceback" not in answer.content[0].text

    talk(conversation)
    assert not commands_in(folder)
    assert not (folder / MARKER).exists(), (folder / MARKER).read_text()


@pytest.mark.slow("a whole search")
def test_a_cancelled_call_and_a_killed_server_leave_what_can_be_resumed(folder: Path) -> None:
    runs = folder / "runs"

    def has_runs(count: int) -> Callable[[], bool]:
        return lambda: runs.exists() and len(runs.read_text().splitlines()) >= count

    async def cancel() -> None:
        async with connect(folder) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "referee", call(9, 0.3, "mine"))
                await until(has_runs(3))
                group.cancel_scope.cancel()
            await until(lambda: not commands_in(folder))
            answer = await client.call_tool("status", {"search": "mine"})  # the server still answers
            assert answer.structured_content["result"]["outcome"] == "unfinished"

    talk(cancel)
    before = len(runs.read_text().splitlines())
    assert before < 12
    server = subprocess.Popen(
        [*AUTOML, "mcp"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    for message in (
        '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", '
        '"capabilities": {}, "clientInfo": {"name": "lines", "version": "1"}}}',
        '{"jsonrpc": "2.0", "method": "notifications/initialized"}',
        '{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "referee", "arguments": '
        '{"resume": "mine"}}}',
    ):
        print(message, file=server.stdin, flush=True)
    anyio.run(until, has_runs(before + 1))
    os.kill(server.pid, signal.SIGKILL)
    server.communicate()
    anyio.run(until, lambda: not commands_in(folder))
    done = subprocess.run(
        [*AUTOML, "referee", "--resume", "mine"], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert len(runs.read_text().splitlines()) <= 12 + 4 * (os.cpu_count() or 1)
