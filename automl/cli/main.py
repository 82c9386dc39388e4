"""The command line: its commands, and the handling of errors."""

import atexit
import errno
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from automl.base.errors import InputError
from automl.base.escape import printable, redact
from automl.cli.command import Command, as_command
from automl.cli.export_command import export, predict
from automl.cli.folder_commands import report, searches, status, sync
from automl.cli.judge_commands import confirm, ledger, mcp, referee, skill, solve
from automl.cli.search_command import search, studies, study
from automl.cli.space_commands import attentions, check_attention, cost, data, sites, spaces
from automl.cli.train_command import train

COMMON: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(name="automl", no_args_is_help=True, **COMMON)


def _version(asked: bool) -> None:
    if asked:
        print(f"automl {version('attention-automl')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Search where attention goes in your network, and test whether it helps."""


# Commands import what they run: Ray, MLflow and fastai take seconds each, and `automl --help` needs none.
GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start here": (data, search, report, export, predict),
    "Judge": (confirm, referee, ledger, solve, study, mcp, skill),
    "Train and look": (train, cost, sites, check_attention, spaces, attentions, studies),
    "Searches": (status, searches, sync),
}
for group, commands in GROUPS.items():
    for command in commands:
        app.command(cls=Command, rich_help_panel=group)(as_command(command))


def main(arguments: Sequence[str] | None = None, program: typer.Typer = app, name: str | None = None) -> None:
    """Run a command. Print an InputError as one message and exit with code 2.

    The words of the command line, and the name of the program in messages, are by default the process's.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may contain bytes that are not UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    # Users cannot act on the warnings of libraries. The log of a search contains them.
    for category in (DeprecationWarning, FutureWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)
    try:
        program(arguments, prog_name=name)
    except InputError as error:
        print(f"error: {_plain(str(error))}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            _print_defect()
        name = _plain(str(error.filename))
        print(f"error: the file name {name} is too long; give a shorter one", file=sys.stderr)
        sys.exit(2)
    except RuntimeError as error:
        from automl.config.device import is_out_of_memory  # it imports torch

        if not is_out_of_memory(error):
            _print_defect()
        reason = str(error).strip().splitlines()[0]  # without torch's advice to programmers
        print(
            f"error: {_plain(reason)} Lower --batch-size, choose a smaller model, or end "
            f"other processes on the GPU",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        _stop(signal.SIGINT)
    except Exception:
        _print_defect()


def _print_defect() -> NoReturn:
    print(_plain(traceback.format_exc()), end="", file=sys.stderr)
    sys.exit(1)


def _plain(text: str) -> str:
    """Escape a message for the terminal, and hide passwords in addresses of servers."""
    return printable(redact(text), keep="\n\t")


def _stop(number: int, frame: FrameType | None = None) -> NoReturn:
    with suppress(OSError):  # the terminal is closed
        print("stopped", file=sys.stderr)
    sys.exit(128 + number)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(OSError):  # the terminal is closed
        print("stopping", file=sys.stderr, flush=True)  # now, as ends of threads and of Ray take seconds
    raise KeyboardInterrupt


def run(
    arguments: Sequence[str] | None = None, program: typer.Typer = app, name: str | None = None
) -> NoReturn:
    """Run `main` and exit the process at once.

    A normal exit of Python frees all objects of torch and Ray first, which takes two seconds.
    """
    status: object = 0
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background
        signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as by nohup
        signal.signal(signal.SIGHUP, _stop)
    try:
        main(arguments, program, name)
    except SystemExit as ended:
        status = ended.code
    except KeyboardInterrupt:  # a second one, while the first ended the command
        status = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left takes a moment
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader of the pipe has exited
            stream.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    run()
