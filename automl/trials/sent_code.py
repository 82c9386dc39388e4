"""User-defined code on its way to the processes of trials.

A function of a notebook is packed with the values that it uses, such as arrays. Tune copies the configuration
of a trial many times, so large code goes through Ray's object store.
"""

import sys
from collections.abc import Callable, Mapping
from functools import cache

import ray

from automl.base.loading import Code, receive

SMALL = 1 << 16  # largest code in a configuration [bytes]
LARGE = 100 << 20  # size from which a message says so [bytes]

_fetched: dict[str, ray.ObjectRef] = {}  # Large code that this process has, by its name.

SentCode = Mapping[str, bytes | ray.ObjectRef]


def make_sender() -> Callable[[Code], SentCode]:
    """Return a function that replaces large code by references. It stores each once in the connected Ray."""
    put = cache(_put)

    def send(code: Code) -> SentCode:
        return {
            name: content if len(content) <= SMALL else put(name, content) for name, content in code.items()
        }

    return send


def _put(name: str, content: bytes) -> ray.ObjectRef:
    if len(content) >= LARGE:
        print(
            f"{name} has {len(content) / 1e6:.0f} MB with the values that it uses, and each process of a "
            f"trial gets a copy; load large data inside the function, from a file",
            file=sys.stderr,
            flush=True,
        )
    return ray.put(content)


def receive_code(code: SentCode) -> None:
    """Make the code available in this process."""
    references = {name: each for name, each in code.items() if isinstance(each, ray.ObjectRef)}
    needed = {name: each for name, each in references.items() if _fetched.get(name) != each}
    receive({name: each for name, each in code.items() if isinstance(each, bytes)})
    receive(dict(zip(needed, ray.get([*needed.values()]), strict=True)) if needed else {})
    _fetched.update(needed)
