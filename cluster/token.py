"""Checks the authentication token. Ray itself tries for 15 seconds, and its error does not name the token."""

import grpc
from ray.exceptions import AuthenticationError

from automl.base.errors import InputError
from cluster.ray_internals import ask_cluster_id

_ADVICE = (
    "'export RAY_AUTH_MODE=token', and put the cluster's token into ~/.ray/auth_token or RAY_AUTH_TOKEN; "
    "'ray get-auth-token' prints it on the machine where the cluster was started."
)


def check_token(address: str) -> None:
    """Check that the cluster at `address` accepts the authentication token, or needs none.

    Ray's client protocol (`ray://`) has its own checks.

    Args:
        address: HOST:PORT, or `auto` for the cluster on this machine.

    Raises:
        InputError: The token is missing or wrong.
        ConnectionError: There is no cluster at `address`.
    """
    if address.startswith("ray://"):
        return
    try:
        ask_cluster_id(address, timeout=10)
    except AuthenticationError as error:
        raise InputError(f"RAY_AUTH_MODE is token, and there is no token. {_ADVICE}") from error
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise InputError(
                f"the cluster at {address} asks for a token, and got none or another cluster's. {_ADVICE}"
            ) from error
        # Ray reports other errors when it connects.
