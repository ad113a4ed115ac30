"""The EC2 API: blocking calls in threads, and its errors in the kit's words."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from bigfleet_providerkit.errors import (
    BackendError,
    InsufficientCapacity,
    NotFound,
    Retryable,
    Terminal,
    Unauthorized,
)

MAX_CALLS: Final = 16
_CAPACITY_PAUSE_S: Final = 300.0
_THROTTLED_PAUSE_S: Final = 2.0
CAPACITY_CODES: Final = frozenset(
    {
        "InstanceLimitExceeded",
        "InsufficientCapacityOnHost",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientVolumeCapacity",
        "MaxSpotInstanceCountExceeded",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "VcpuLimitExceeded",
    }
)
"""EC2 has none left, or none for us: trying at once with another slot would only fail again."""
_PASSING_CODES: Final = frozenset(
    {
        "EC2ThrottledException",
        "IncorrectInstanceState",
        "IncorrectSpotRequestState",
        "IncorrectState",
        "InternalError",
        "InternalFailure",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "Unavailable",
        "VolumeInUse",
    }
)
"""Throttling, faults of the service, and hosts that are still on their way to the state we need."""
_REFUSED_CODES: Final = frozenset(
    {"AuthFailure", "ExpiredToken", "InvalidClientTokenId", "OptInRequired", "UnauthorizedOperation"}
)


class ParameterMismatch(Terminal):
    """The client token is known, with other parameters: what it made was made by another configuration."""


class Api:
    """One region's EC2."""

    def __init__(self, region: str, endpoint_url: str = "") -> None:
        try:
            import boto3  # type: ignore[import-untyped]  # published without types
            from botocore.config import Config  # type: ignore[import-untyped]  # as above
        except ModuleNotFoundError:
            raise ValueError(
                "boto3 is not installed; install the provider as bigfleet-providerkit[ec2]"
            ) from None
        self.region = region
        self._client: Any = boto3.Session().client(
            "ec2",
            region_name=region,
            endpoint_url=endpoint_url or None,
            config=Config(
                connect_timeout=5,
                read_timeout=15,
                max_pool_connections=MAX_CALLS,
                # Backs off with jitter from throttling; what is left is the kit's to try again.
                retries={"mode": "standard", "total_max_attempts": 4},
            ),
        )
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="ec2")

    async def call(self, action: str, **parameters: Any) -> Any:
        """Make one call; BackendError when EC2 refuses it.

        Whoever is cancelled in the middle waits for the answer all the same: a launch that nobody waits for
        would make its instance after the kit has looked and found none.
        """
        work = partial(self._blocking, action, parameters)
        answer = asyncio.get_running_loop().run_in_executor(self._threads, work)
        answer.add_done_callback(forget)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await asyncio.wait([answer])
            raise

    async def pages(self, action: str, key: str, **parameters: Any) -> list[Any]:
        """All of a listing, page by page."""
        found: list[Any] = []
        token: dict[str, str] = {}
        while True:
            page = await self.call(action, **parameters, **token)
            found += page[key]
            if not page.get("NextToken"):
                return found
            token = {"NextToken": page["NextToken"]}

    def _blocking(self, action: str, parameters: dict[str, Any]) -> Any:
        from botocore.exceptions import (  # type: ignore[import-untyped]  # published without types
            BotoCoreError,
            ClientError,
            HTTPClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        try:
            return getattr(self._client, action)(**parameters)
        except ClientError as error:
            said = error.response["Error"]
            raise translated(action, said.get("Code", ""), said.get("Message", "")) from None
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise Unauthorized(f"{action}: {error}") from None
        except HTTPClientError as error:
            raise Retryable(f"{action}: {error}", after=_THROTTLED_PAUSE_S) from None
        except BotoCoreError as error:
            raise Terminal(f"{action}: {error}") from None


def translated(action: str, code: str, message: str) -> BackendError:
    """An EC2 error as the kit understands it; the text keeps EC2's own code, which is what people look up."""
    text = f"{action}: {code}: {message}"
    if code in CAPACITY_CODES:
        return InsufficientCapacity(text, retry_after=_CAPACITY_PAUSE_S)
    if code in _PASSING_CODES:
        return Retryable(text, after=_THROTTLED_PAUSE_S)
    if code in _REFUSED_CODES:
        return Unauthorized(text)
    if code == "IdempotentParameterMismatch":
        return ParameterMismatch(text)
    if code.endswith(".NotFound"):
        return NotFound(text)
    return Terminal(text)


def forget(ended: asyncio.Future[Any]) -> None:
    """An error that nobody is left to hear is none."""
    if not ended.cancelled():
        ended.exception()


def filters(values: Mapping[str, str | Sequence[str]]) -> list[dict[str, Any]]:
    """Filters as EC2 takes them."""
    return [
        {"Name": name, "Values": [value] if isinstance(value, str) else list(value)}
        for name, value in values.items()
    ]
