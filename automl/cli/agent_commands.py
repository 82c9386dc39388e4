"""`automl mcp` and `automl skill`: the interfaces of agents."""

from pathlib import Path

from automl.base.lazy import optional
from automl.base.options import PUBLISHES, WRITES
from automl.cli.options import option


def mcp(
    allow_publish: bool = option(
        False, "Let tools register models in MLflow and upload them.", None, "--allow-publish"
    ),
    allow_outside: bool = option(
        False, "Let tools write to other folders than the current one.", None, "--allow-outside"
    ),
) -> None:
    """Serve the commands as tools of agents.

    A client of the Model Context Protocol starts it, and speaks by standard input and output.
    """
    _ = optional("mcp.server.lowlevel", "mcp").Server  # or the message of the extra
    from automl.cli.main import app
    from automl.cli.mcp_server import serve
    from automl.cli.tools import read_tools

    allowed = {PUBLISHES: allow_publish, WRITES: allow_outside}
    serve(read_tools(app, [effect for effect, is_allowed in allowed.items() if is_allowed]))


def skill() -> None:
    """Print instructions for agents that ask a referee."""
    print(Path(__file__).with_name("SKILL.md").read_text(encoding="utf-8"), end="")
