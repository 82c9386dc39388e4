import os
import signal
import subprocess
import sys
import threading

import pytest

from automl.trials.interrupt import interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with interrupts("resume with: x") as interrupt:
        assert not interrupt()
        os.kill(os.getpid(), number)
        assert interrupt()
        assert interrupt.signal == number
    assert [signal.getsignal(one) for one in SIGNALS] == before
    assert capsys.readouterr().err == "stopping; once more to stop at once\n"


def test_the_second_one_ends_the_process() -> None:
    code = """
import os, signal
from automl.trials.interrupt import interrupts
with interrupts("resume with: x"):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    print("still here")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "")
    assert done.stderr.splitlines() == ["stopping; once more to stop at once", "resume with: x"]


def test_beside_the_main_thread_there_are_no_signals() -> None:
    heard = []

    def work() -> None:
        with interrupts("") as interrupt:
            heard.append(interrupt())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [False]
