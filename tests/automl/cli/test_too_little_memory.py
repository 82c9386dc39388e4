"""A command that runs out of a GPU's memory."""

import pytest
import torch
import typer

from automl.cli.main import main


def test_it_prints_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    program = typer.Typer()

    @program.command()
    def train() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")

    with pytest.raises(SystemExit) as ended:
        main([], program)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: CUDA out of memory. Tried to allocate 2.00 GiB. Lower --batch-size")
