"""Run a command that ends with its parent: `python -m automl.cli.attended COMMAND ...`.

The parent holds the other end of standard input open, and writes nothing. When the parent closes it, or is
killed, the command is interrupted as by Ctrl-C, later terminated, and at last killed.
"""

import os
import signal
import sys
import threading
import time
from typing import NoReturn

PATIENCE = 10  # between two signals [s]


def main() -> NoReturn:
    """Run the command of the process's arguments."""
    line = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background ignores it
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()
    from automl.cli.main import run

    sys.argv[0] = "automl"  # which is recorded
    run(name="automl")


def _end_with(line: int) -> None:
    while os.read(line, 1):
        pass
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
        time.sleep(PATIENCE)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
