"""NVIDIA's Multi-Process Service (MPS) for the processes of a local Ray: their kernels overlap on a GPU.

It belongs to one user of one machine, and needs no privileges where the driver permits it. Each start has its
own folder of sockets, which is short, since the path of a socket has at most 107 bytes. A shell holds the
daemon: it ends it when this process has closed its end of a pipe, also when this process was killed.
"""

import os
import subprocess
import sys
import tempfile

VARIABLES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
# `quit` waits for clients. They have ended, except after the driver was killed.
HOLD = """
if timeout 20 nvidia-cuda-mps-control -d < /dev/null > "$1/start.txt" 2>&1
then
    echo started
    read -r _
    echo quit -t 5 | timeout 20 nvidia-cuda-mps-control > /dev/null 2>&1
else
    cat "$1/start.txt"
fi
rm -rf "$1"
"""
# Create a context as a trial does: the daemon starts its server for the first client.
PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, count = ctypes.c_void_p(), ctypes.c_int()
for what, code in (
    ("cuInit", cuda.cuInit(0)),
    ("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count))),
    ("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)),
):
    if code:
        raise SystemExit(f"{what} returned {code}")
"""

_HOLDERS: list[subprocess.Popen[str]] = []  # the shell of the running daemon


def start() -> bool:
    """Start MPS and let processes that start from now on use it. Print whether it is used, and why not."""
    if _HOLDERS:
        return True
    reason = _start()
    if reason is not None:
        stop()
    state = "used: kernels of trials on one GPU overlap" if reason is None else f"not used: {reason}"
    print(f"CUDA MPS is {state}", file=sys.stderr, flush=True)
    return reason is None


def is_used() -> bool:
    """Return True if `start` has started MPS."""
    return bool(_HOLDERS)


def stop() -> None:
    """End MPS, if `start` started it. The processes that use it must have ended."""
    for name in VARIABLES if _HOLDERS else ():
        os.environ.pop(name, None)
    while _HOLDERS:
        with _HOLDERS.pop() as holder:
            holder.communicate()


def _start() -> str | None:
    """Start the daemon and a first client. Return the reason if that fails."""
    if used := [name for name in VARIABLES if name in os.environ]:
        return f"{used[0]} is set, so another daemon is in use"
    folder = tempfile.mkdtemp(prefix="automl-mps-", dir="/tmp")
    os.environ.update(dict.fromkeys(VARIABLES, folder))
    _HOLDERS.append(
        subprocess.Popen(
            ["sh", "-c", HOLD, "automl-mps", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must not end it before the trials
        )
    )
    output = _HOLDERS[0].stdout
    assert output is not None
    lines = []
    for line in output:
        lines.append(line.strip())
        if lines[-1] == "started":
            return _probe()
    return lines[0] if lines else "its daemon did not start"


def _probe() -> str | None:
    """Create a context in another process. Return the reason if that fails."""
    try:
        client = subprocess.run(
            [sys.executable, "-I", "-S", "-c", PROBE], capture_output=True, text=True, timeout=30
        )
    except subprocess.TimeoutExpired:
        return "its first client did not start within 30 seconds"
    lines = client.stderr.strip().splitlines()
    return None if not client.returncode else f"its first client failed ({lines[-1] if lines else ''})"
