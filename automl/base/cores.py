"""The cores of this machine."""

import os
from contextlib import suppress
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def count_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # without a quota, it is the word `max`
        quota, period = map(int, QUOTA.read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores
