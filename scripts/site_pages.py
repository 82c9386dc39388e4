"""Add the reference pages that the code defines to the documentation site: mkdocs calls this hook."""

import inspect
import re
from pathlib import Path
from typing import Any

import griffe
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import automl
from automl.cli.main import app

CLI = """# Command line

Every command has `--help` with the options that most searches need. `--help-all` lists all of them, as
this page does.
"""
API = """# Python

`import automl` gives these names. [What is stable](stability.md) says which of them later versions keep.
"""


# Exported classes and functions, by their paths. Options complete docstrings and signatures at run time.
EXPORTED = {
    f"{value.__module__}.{value.__qualname__}": value
    for value in (getattr(automl, name) for name in automl.__all__)
}


class Examples(griffe.Extension):
    """Griffe reads "Examples:" as code, and "Example:" as a note."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Take docstring and signature from the object, which its options complete. Rename a section."""
        value = EXPORTED.get(obj.path)
        if obj.docstring is not None and value is not None:
            obj.docstring.value = inspect.getdoc(value) or ""
        if isinstance(obj, griffe.Function) and callable(value) and hasattr(value, "__signature__"):
            obj.parameters = griffe.Parameters(
                *map(read_parameter, inspect.signature(value).parameters.values())
            )
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)


def read_parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    """Convert a parameter of a signature."""
    default = None if parameter.default is parameter.empty else repr(parameter.default)
    kind = griffe.ParameterKind(parameter.kind.description)
    return griffe.Parameter(parameter.name, annotation=None, kind=kind, default=default)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the decisions into the navigation."""
    docs = Path(config.docs_dir)
    pages = [path.relative_to(docs).as_posix() for path in sorted(docs.glob("decisions/*.md"))]
    config.nav = [{"Decisions": pages} if "Decisions" in entry else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, content in (("reference/cli.md", write_cli()), ("reference/api.md", write_api())):
        files.append(File.generated(config, path, content=content))
    return files


def write_cli() -> str:
    """Return the page of all commands and their options."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return "\n".join([CLI, *(describe_command(name, commands[name]) for name in commands)])


def describe_command(name: str, command: Any) -> str:
    """Return a command's heading, its text and tables of its arguments and options."""
    arguments = [parameter for parameter in command.params if not parameter.opts[0].startswith("-")]
    lines = [
        f"## automl {name}",
        "",
        f"    automl {' '.join([name, *map(show_argument, arguments)])} [OPTIONS]",
    ]
    lines += ["", inspect.cleandoc(command.help or ""), ""]
    if arguments:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{argument.name.upper()}` | {cell(argument.help)} |" for argument in arguments]
        lines.append("")
    panels: dict[str, list[Any]] = {}
    for option in command.params:
        if option not in arguments and option.name != "help_all":
            panels.setdefault(option.rich_help_panel or "Options", []).append(option)
    for title, options in panels.items():
        lines += [f"**{title}**", "", "| option | value | default | meaning |", "|---|---|---|---|"]
        lines += [describe_option(option) for option in options]
        lines.append("")
    return "\n".join(lines)


def show_argument(argument: Any) -> str:
    """Return an argument as a usage line shows it."""
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def describe_option(option: Any) -> str:
    """Return an option's row of the table."""
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    kind = "" if option.is_flag else describe_type(option.type_descriptor.annotation)
    return f"| {flags} | {kind} | {show_default(option)} | {cell(option.help)} |"


def describe_type(annotation: Any) -> str:
    """Return the name of an option's type, as `--help` shows it."""
    inner = getattr(annotation, "__args__", None)
    return f"{describe_type(inner[0])}, repeated" if inner else str(annotation.__name__).lower()


def show_default(option: Any) -> str:
    """Return the default as `--help` shows it."""
    if isinstance(option.show_default, str):
        return cell(option.show_default)
    if not option.show_default or option.default is None or option.is_flag:
        return ""
    return f"`{option.default}`"


def cell(text: str | None) -> str:
    """Return text that stands in a cell of a table."""
    return " ".join((text or "").split()).replace("|", r"\|").replace("<", "&lt;")


def read_groups() -> dict[str, list[str]]:
    """Return the exported names in the groups of the docstring of `automl`."""
    lines = re.findall(r"^(\w+): +(\w+(?:,\s+\w+)*)$", automl.__doc__ or "", re.M)
    return {title: re.findall(r"\w+", names) for title, names in lines}


def write_api() -> str:
    """Return the page of the names that `automl` exports, which mkdocstrings fills."""
    lines = [API]
    for title, names in read_groups().items():
        lines += [f"## {title}", "", *(f"::: automl.{name}\n" for name in names)]
    return "\n".join(lines)
