"""Server of `automl mcp`: each call of a tool is a process with the command's own `--json`.

So a crash ends the call alone, and only messages get to standard output. An interrupted run is on disk.
"""

import json
import sys
from collections import deque
from collections.abc import AsyncIterator
from importlib.metadata import version
from subprocess import PIPE
from typing import Any

import anyio
import mcp_types
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.text import TextReceiveStream
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from automl.base.errors import InputError, unknown
from automl.cli.tools import CODES, OUTPUT, Tool

LINES, LONGEST = 200, 2000  # last lines of the output that an answer keeps, and characters of a line
ANSWERS = (0, 1, 3)  # exit codes that are no mistake
POLL, DRAIN = 0.05, 1  # intervals between looks at a process, and time for its last output [s]
INSTRUCTIONS = (
    "Tests if a change of a training really helps. Paths and commands are those of the folder in which the "
    f"server was started. {CODES} Never repeat a call until it says better: `automl skill` has the rules."
)


def serve(tools: dict[str, Tool]) -> None:
    """Serve tools on standard input and output until the client closes the input."""
    anyio.run(_serve, make_server(tools))


def make_server(tools: dict[str, Tool]) -> Server[Any]:
    """Return the server of some tools."""
    listed = [
        mcp_types.Tool(
            name=name,
            description=tool.description,
            input_schema=tool.schema,
            output_schema=OUTPUT,
            annotations=mcp_types.ToolAnnotations(**tool.hints),
        )
        for name, tool in tools.items()
    ]

    async def list_tools(
        context: ServerRequestContext[Any], params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=listed)

    async def call_tool(
        context: ServerRequestContext[Any], params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        try:
            if params.name not in tools:
                raise unknown("tool", params.name, tools)
            tool = tools[params.name]
            words = tool.to_words(params.arguments or {})
        except InputError as error:
            return _answer(2, None, f"error: {error}")
        return await run_command(words, tool.has_json, context)

    return Server(
        "automl",
        version=version("attention-automl"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def run_command(
    words: list[str], has_json: bool, context: ServerRequestContext[Any]
) -> mcp_types.CallToolResult:
    """Run a command, and report each line that it prints on standard error as progress.

    If the call is cancelled, the command is interrupted, and the function waits for its end.
    """
    process = await anyio.open_process(
        [sys.executable, "-P", "-m", "automl.cli.attended", *words],
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    text: deque[str] = deque(maxlen=LINES)
    printed: deque[str] = deque(maxlen=LINES)

    async def report() -> None:
        count = 0
        async for line in _lines(process.stderr):
            count += 1
            text.append(line[:LONGEST])
            await context.session.report_progress(count, message=line[:LONGEST])

    async def collect() -> None:
        async for line in _lines(process.stdout):
            printed.append(line)

    try:
        with anyio.CancelScope() as readers:
            async with anyio.create_task_group() as group:
                group.start_soon(report)
                group.start_soon(collect)
                await _wait(process)
                readers.deadline = anyio.current_time() + DRAIN  # a process that it left may have the pipe
    finally:
        with anyio.CancelScope(shield=True):
            assert process.stdin is not None
            await process.stdin.aclose()  # which interrupts the command
            await _wait(process)
    assert process.returncode is not None
    result = _read(printed) if has_json else None
    if not has_json:
        text.extend(line[:LONGEST] for line in printed)
    answers = ANSWERS if has_json else (0,)
    is_answer = process.returncode in answers and (result is not None or not has_json)
    return _answer(process.returncode, result, "\n".join(text), is_answer)


async def _lines(stream: ByteReceiveStream | None) -> AsyncIterator[str]:
    assert stream is not None
    rest = ""
    async for chunk in TextReceiveStream(stream, errors="replace"):
        *lines, rest = (rest + chunk).split("\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _wait(process: Process) -> None:
    """Wait for the end of a process, but not of those that it left, which `process.wait` would."""
    while process.returncode is None:
        await anyio.sleep(POLL)


def _read(printed: deque[str]) -> Any:
    try:
        return json.loads(printed[-1]) if printed else None
    except ValueError:
        return None


def _answer(code: int, result: Any, text: str, is_answer: bool = False) -> mcp_types.CallToolResult:
    value = {"exit_code": code, "result": result, "text": text}
    # Clients of older protocols show the text alone. A mistake is its message.
    shown = json.dumps(value) if is_answer else text or f"the command ended with exit code {code}"
    return mcp_types.CallToolResult(
        content=[mcp_types.TextContent(type="text", text=shown)],
        structured_content=value,
        is_error=not is_answer,
    )
