"""Server of `automl mcp`: each call of a tool is a process with the command's own `--json`.

So a crash ends the call alone, and only messages get to standard output. An interrupted run is on disk.
"""

import inspect
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
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
from automl.cli.command import COMMON, declaration_of
from automl.storage.storage import is_address

# The commands of the tools, and an option that each call has.
NAMES = ("referee", "noise", "ledger", "search", "status", "report", "solve", "export")
TOOLS: dict[str, tuple[str, str | None]] = {name: (name, None) for name in NAMES}
TOOLS["noise"] = ("referee", "noise")
LEFT_OUT = (*COMMON, "as_json", "show", "help")  # options for people
# Names of types in a schema and in a message, and in Python.
TYPES: dict[Any, tuple[str | list[str], str, tuple[type, ...]]] = {
    bool: ("boolean", "true or false", (bool,)),
    int: ("integer", "an integer", (int,)),
    float: ("number", "a number", (int, float)),
    str: ("string", "a text", (str,)),
    Any: (["string", "number"], "a text or a number", (str, int, float)),  # such as 5M
    Path: ("string", "a text", (str,)),
}
CODES = "`exit_code` 0, 1 and 3 are answers. 2 is a mistake, with a message."
OUTPUT = {
    "type": "object",
    "properties": {
        "exit_code": {"type": "integer", "description": f"Exit code of the command. {CODES}"},
        "result": {"description": "The JSON that the command prints with --json. null if it has none."},
        "text": {"type": "string", "description": "The last lines that the command printed."},
    },
    "required": ["exit_code", "result", "text"],
}


@dataclass(frozen=True)
class Tool:
    """A command that agents may call.

    Attributes:
        name: Name of the tool.
        command: The command, as Typer builds it.
        fixed: Name of an option that each call has.
        outside: True if calls may write outside of the current folder.
    """

    name: str
    command: Any
    fixed: str | None
    outside: bool = False

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Options and arguments of the command by their names in a call, which are those of files."""
        return {
            parameter.opts[0].lstrip("-").replace("-", "_"): parameter
            for parameter in self.command.params
            if parameter.name not in (*LEFT_OUT, self.fixed)
        }

    @cached_property
    def written(self) -> set[str]:
        """Names in a call of the options and arguments that name what the command writes."""
        declared = inspect.signature(self.command.callback, eval_str=True).parameters
        return {
            name
            for name, parameter in self.parameters.items()
            if getattr(declaration_of(declared[parameter.name]), "effect", "")
        }

    @property
    def hints(self) -> dict[str, Any]:
        """Annotations of the protocol. A command with `--trust` runs code or commands of its caller."""
        runs_code, writes = "trust" in self.parameters, bool(self.written)
        return {
            "read_only_hint": not writes,
            "destructive_hint": writes,  # outputs replace files
            "idempotent_hint": not runs_code,
            "open_world_hint": runs_code,
        }

    @property
    def has_json(self) -> bool:
        """True if the command has `--json`."""
        return any(parameter.name == "as_json" for parameter in self.command.params)

    @property
    def description(self) -> str:
        """The help of the command, or of the option that makes it another tool."""
        texts = [each.help for each in self.command.params if each.name == self.fixed]
        return " ".join(" ".join(texts or [self.command.help]).split())

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments of a call."""
        return {
            "type": "object",
            "properties": {name: _schema(parameter) for name, parameter in self.parameters.items()},
            "required": [name for name, parameter in self.parameters.items() if parameter.required],
            "additionalProperties": False,
        }

    def to_words(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the command line of a call. Raise InputError for arguments that the schema refuses."""
        options, positional = [str(self.command.name)], []
        options += ["--json"] * self.has_json + [f"--{self.fixed}"] * (self.fixed is not None)
        for name, value in arguments.items():
            if name not in self.parameters:
                raise unknown(f"argument of {self.name}", name, self.parameters)
            parameter = self.parameters[name]
            if value is None:  # as without it
                continue
            texts = self._check(name, parameter, value)
            if not parameter.opts[0].startswith("-"):
                positional += texts
            elif parameter.is_flag:
                options += (parameter.opts if value else parameter.secondary_opts)[:1]
            else:
                options += [f"{parameter.opts[0]}={text}" for text in texts]
        return [*options, "--", *positional] if positional else options

    def _check(self, name: str, parameter: Any, value: Any) -> list[str]:
        kind, is_list = _kind(parameter)
        _, rule, types = TYPES[kind]
        values = value if is_list and isinstance(value, list) else [value]
        # In JSON, 2.0 is an integer.
        values = [int(each) if isinstance(each, float) and each.is_integer() else each for each in values]
        is_right = isinstance(value, list) == is_list
        for each in values:
            is_right &= isinstance(each, types) and (kind is bool or not isinstance(each, bool))
            if isinstance(each, str) and "\0" in each:
                raise InputError(f"{name} of {self.name} must not contain a zero byte; got {each!r}")
        if not is_right:
            rule = f"a list, each {rule}" if is_list else rule
            raise InputError(f"{name} of {self.name} must be {rule}; got {json.dumps(value)}")
        texts = [str(each) for each in values]
        for text in texts:
            if name in self.written and not self.outside and not _is_below(text, Path.cwd()):
                raise InputError(
                    f"{name} of {self.name} must be in the folder of the server, {Path.cwd()}; got {text!r}. "
                    f"Or ask the user to start automl mcp with --allow-outside"
                )
        return texts


def _is_below(path: str, folder: Path) -> bool:
    """Return True if a path leads into a folder, also by links. An address does not."""
    try:
        return not is_address(path) and Path(path).expanduser().resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a name that is too long, or an unknown home folder
        return False


def read_tools(commands: Mapping[str, Any], *, outside: bool = False) -> dict[str, Tool]:
    """Return the tools by name. One whose command or option is not among `commands` is left out.

    With `outside`, calls may write outside of the current folder.
    """
    return {
        name: Tool(name, commands[command], fixed, outside)
        for name, (command, fixed) in TOOLS.items()
        if command in commands and fixed in (None, *(each.name for each in commands[command].params))
    }


def _kind(parameter: Any) -> tuple[Any, bool]:
    """Return the type of a parameter's values, and True if it takes several."""
    annotation = parameter.type_descriptor.annotation
    inner: Sequence[Any] = getattr(annotation, "__args__", ())
    kind = inner[0] if inner else annotation
    if not inner and kind not in (bool, int, float, Path):
        kind = Any
    return (kind if kind in TYPES else str), bool(inner)


def _schema(parameter: Any) -> dict[str, Any]:
    kind, is_list = _kind(parameter)
    schema: dict[str, Any] = {"type": TYPES[kind][0]}
    if is_list:
        schema = {"type": "array", "items": schema}
    shown = f" Default: {parameter.show_default}." if isinstance(parameter.show_default, str) else ""
    schema["description"] = " ".join((parameter.help or "").split()) + shown
    if isinstance(parameter.default, bool | int | float | str) and parameter.default != "":
        schema["default"] = parameter.default
    return schema


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
