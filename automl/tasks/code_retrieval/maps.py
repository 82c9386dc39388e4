"""Functions of source files, whose attention maps an exported encoder draws."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.export.map_inputs import MapReader, Shown
from automl.export.predict import no_export
from automl.tasks.code_retrieval.data.source_folder import list_source_files, read_source_file
from automl.tasks.code_retrieval.data.tokenizer import Tokenizer
from automl.tasks.code_retrieval.deploy import CODE, INPUT
from automl.tasks.deployment import TOKENIZER


def read_code(
    folder: Path, about: Mapping[str, Any], files: Sequence[str | Path], trust: bool
) -> Iterator[Shown]:
    """Yield the functions of source files."""
    try:
        tokenizer = Tokenizer((folder / TOKENIZER).read_text(encoding="utf-8"))
        length = about["graphs"][CODE]["details"]["length"]
    except Exception as error:  # the files may have any content
        raise no_export(folder, error) from error
    for path in map(Path, files):
        for file in list_source_files(path) if path.is_dir() else [path]:
            functions = read_source_file(file, str(file))
            if isinstance(functions, str):
                raise InputError(f"{file} cannot be read as source code: {functions}")
            for function in functions:
                tokens, _ = tokenizer.encode([function.code], length)
                yield Shown(
                    name=f"{function.location} {function.name}",
                    stem=f"{file.stem}-{function.line}",
                    arrays={INPUT: tokens},
                    extents=(tokens.shape[1],),
                    tokens=tokenizer.names(tokens[0]),
                )


READER = MapReader(graph=CODE, read=read_code)
