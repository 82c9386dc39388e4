"""Run the examples in the docstrings of the public API."""

import doctest
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import automl


def run_examples(names: list[str]) -> None:
    """Run the examples of the docstrings in order, with shared variables.

    They run in another thread than the main one, as in a server, since any thread may call the API.
    """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_run, names).result()


def _run(names: list[str]) -> None:
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
