"""Checks the authentication token: Ray itself tries for 15 seconds, and its error does not name the token."""

import grpc
from ray._private.gcs_utils import create_gcs_channel
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
from ray.exceptions import AuthenticationError

from attention import InputError

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
    gcs = canonicalize_bootstrap_address_or_die(address)
    try:
        with create_gcs_channel(gcs) as channel:
            NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=10)
    except AuthenticationError as error:
        raise InputError(f"RAY_AUTH_MODE is token, and there is no token. {_ADVICE}") from error
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise InputError(
                f"the cluster at {address} asks for a token, and got none or another cluster's. {_ADVICE}"
            ) from error
        # What else is wrong shows when Ray connects.
