"""Load the user's callbacks, and catch their errors."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from automl.base import loading
from automl.base.errors import InputError
from search.record import Callback, SearchRecord, TrialRecord

log = logging.getLogger("automl")


def check_callbacks(callbacks: Iterable[object]) -> None:
    """Load the classes of callbacks given by name. Raise InputError for an invalid callback."""
    for callback in callbacks:
        if isinstance(callback, str):
            _load(callback)
        elif isinstance(callback, type) or not isinstance(callback, Callback):
            raise InputError(
                f"callbacks must be instances of automl.Callback, or names such as file.py:Name; "
                f"got {callback!r}"
            )


def _load(name: str) -> type[Callback]:
    if ":" not in name:
        raise InputError(f"--callback must be file.py:Name or package.module:Name; got {name!r}")
    callback = loading.load_object("callback", "class", name, ())
    if not (isinstance(callback, type) and issubclass(callback, Callback)):
        raise InputError(f"callback {name!r} must be a subclass of automl.Callback; got {callback!r}")
    return callback


class UserCallbacks(Callback):
    """Callback that calls several callbacks with frozen copies of records.

    It logs the first error of each method with its traceback, and continues.
    """

    def __init__(self, callbacks: Sequence[str | Callback]) -> None:
        check_callbacks(callbacks)
        self.callbacks = [_load(c)() if isinstance(c, str) else c for c in callbacks]
        self._failed: set[tuple[int, str]] = set()

    def on_search_start(self, search: SearchRecord) -> None:
        self._call("on_search_start", lambda: search)

    def on_trial_start(self, trial: TrialRecord) -> None:
        self._call("on_trial_start", trial.frozen)

    def on_epoch_end(self, trial: TrialRecord) -> None:
        self._call("on_epoch_end", trial.frozen)

    def on_trial_end(self, trial: TrialRecord) -> None:
        self._call("on_trial_end", trial.frozen)

    def on_search_end(self, result: Any) -> None:
        self._call("on_search_end", lambda: result)

    def on_confirmation_start(self, search: SearchRecord) -> None:
        self._call("on_confirmation_start", lambda: search)

    def on_confirmation_end(self, result: Any) -> None:
        self._call("on_confirmation_end", lambda: result)

    def _call(self, event: str, record: Callable[[], object]) -> None:
        for i, callback in enumerate(self.callbacks):
            try:
                getattr(callback, event)(record())
            except Exception:
                if (i, event) not in self._failed:
                    self._failed.add((i, event))
                    log.exception(
                        "%s.%s failed; the search continues, and its further errors are not shown",
                        type(callback).__name__,
                        event,
                    )
