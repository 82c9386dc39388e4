"""`automl mcp` and `automl skill`: the interfaces of agents."""

from pathlib import Path

from automl.base.lazy import optional


def mcp() -> None:
    """Serve the commands as tools of agents.

    A client of the Model Context Protocol starts it, and speaks by standard input and output.
    """
    _ = optional("mcp.server.lowlevel", "mcp").Server  # or the message of the extra
    from automl.cli.main import app
    from automl.cli.mcp_server import serve
    from automl.cli.tools import read_tools

    serve(read_tools(app))


def skill() -> None:
    """Print instructions for agents that ask a referee."""
    print(Path(__file__).with_name("SKILL.md").read_text(encoding="utf-8"), end="")
