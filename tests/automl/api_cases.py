"""Runs the examples of the public API's docstrings."""

import doctest
import inspect
from typing import Any

import automl


def run_examples(names: list[str]) -> None:
    """Run the examples of the docstrings one after the other, with the same variables."""
    variables: dict[str, Any] = {}
    for name in names:
        runner = doctest.DocTestRunner()
        text = inspect.getdoc(getattr(automl, name)) or ""
        test = doctest.DocTestParser().get_doctest(text, variables, name, name, 0)
        assert test.examples, f"{name} has no example"
        output: list[str] = []
        runner.run(test, out=output.append, clear_globs=False)
        assert not runner.failures, "".join(output)
        variables = test.globs
