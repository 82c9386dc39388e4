import os
import signal
import subprocess
import sys
import threading

import pytest

from automl.trials.session import record_signals

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_recorded(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with record_signals("resume with: x") as interrupt:
        assert not interrupt()
        os.kill(os.getpid(), number)
        assert interrupt()
        assert interrupt.signal == number
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert capsys.readouterr().err == "stopping; once more to stop at once\n"


def test_the_second_signal_ends_the_process() -> None:
    code = """
import os, signal
from automl.trials.session import record_signals
with record_signals("resume with: x"):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    print("still here")
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout) == (128 + signal.SIGTERM, "")
    assert process.stderr.splitlines() == ["stopping; once more to stop at once", "resume with: x"]


def test_other_threads_receive_no_signals() -> None:
    answers = []

    def work() -> None:
        with record_signals("") as interrupt:
            answers.append(interrupt())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
