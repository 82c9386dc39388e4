"""Output of a notebook cell that is updated in place."""

import sys
from typing import Any


class NotebookOutput:
    """Output below the running cell, as HTML with a plain text alternative."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, html: str, text: str) -> None:
        from IPython.display import display, update_display

        content = {"text/html": html, "text/plain": text}
        if self.handle is None:
            self.handle = display(content, raw=True, display_id=True)
        else:
            update_display(content, raw=True, display_id=self.handle.display_id)


def notebook_output() -> NotebookOutput | None:
    """Return the output of the current cell, or None outside of a notebook."""
    ipython = sys.modules.get("IPython")  # a notebook has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return NotebookOutput() if hasattr(shell, "kernel") else None
