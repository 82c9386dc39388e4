"""Text of commands and options, for messages."""

from automl.base.escape import shell

STORAGE = "searches"


def format_command(command: str, name: str, storage: str, *arguments: str) -> str:
    """Return a command about the search called `name`, for a shell. The default storage is left out."""
    options = [] if storage == STORAGE else ["--storage", storage]
    return f"automl {command} {shell([name, *options, *arguments])}"


def option_name(setting: str) -> str:
    """Return the command-line option of a setting."""
    return f"--{setting.replace('_', '-')}"


def format_option(setting: str, value: object) -> str:
    """Return a setting as an option with its value: `--seeds 6`, or `--no-sequential` for False."""
    if isinstance(value, bool):
        return option_name(setting if value else f"no_{setting}")
    return f"{option_name(setting)} {value}"
