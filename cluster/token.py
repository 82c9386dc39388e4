"""Checks the authentication token: Ray itself tries for 15 seconds, and its error does not name the token."""

import grpc
from ray.exceptions import AuthenticationError

from attention import InputError
from cluster.ray_internals import ask_cluster_id

_ADVICE = (
    "'export RAY_AUTH_MODE=token', and put the cluster's token into ~/.ray/auth_token or RAY_AUTH_TOKEN; "
    "'ray get-auth-token' prints it on the machine where the cluster was started."
)


def check_token(address: str) -> None:
    """Raises InputError when the cluster at `address` asks for a token that we do not have.

    address: HOST:PORT, or `auto` for the cluster on this machine. Raises ConnectionError where there is none.
    Ray's client protocol (`ray://`) has checks of its own.
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
        # What else is wrong shows when Ray connects.
