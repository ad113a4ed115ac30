"""Scripted operators: clusters without Kubernetes, over the real wire.

Each holds a session to a shard, sends the roll-ups that its script calls for, and answers what it is asked.
One process can be one of them (``python -m bigfleet.scale.operators``, for the demo) or thousands (for load).
"""

import argparse
import asyncio
import contextlib
import math
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from grpc import aio

from bigfleet.scale.script import Demand, ScriptError, read_script
from bigfleet_base.model import is_valid_id
from bigfleet_base.model.frames import (
    BootstrapRequest,
    Frame,
    NodeState,
    ReclaimInstruction,
    Resync,
    RollupAck,
)
from bigfleet_base.options import OneLineParser
from bigfleet_base.wire import dial, require_local_or_insecure
from bigfleet_base.wire.address import parse_peer_address
from bigfleet_base.wire.rollups import encode_rollup_message
from bigfleet_base.wire.session import (
    BootstrapAnswer,
    CordonAck,
    Hello,
    decode_frame,
    encode_operator_message,
)
from bigfleet_base.wire.transport_errors import AddressError, PlaintextRefusedError

SESSION: Final = "/bigfleet.v1alpha1.Shard/Session"
PROTOCOL: Final = "v1alpha1"
BLOB: Final = b"#cloud-config\n# joins nothing: scripted operators have no cluster\n"
GREATEST_BACKOFF_S: Final = 30.0


@dataclass(slots=True)
class Tally:
    """What an operator has seen and done."""

    connected: int = 0
    rollups: int = 0
    ack_seconds: list[float] = field(default_factory=list)
    bootstraps: int = 0
    reclaims: int = 0
    resyncs: int = 0
    nodes: dict[str, str] = field(default_factory=dict)
    """The last state heard of each machine."""
    endings: Counter[str] = field(default_factory=Counter)


class ScriptedOperator:
    """One cluster's operator."""

    def __init__(
        self,
        cluster: str,
        demand: Demand,
        *,
        rollup_interval: float = 10.0,
        answer_delay: float = 0.0,
        keep_acks: bool = False,
        heard: Callable[[Frame], None] | None = None,
        lost: Callable[[aio.AioRpcError], None] | None = None,
    ) -> None:
        self.cluster = cluster
        self.demand = demand
        self.tally = Tally()
        self._rollup_interval = rollup_interval
        self._answer_delay = answer_delay
        self._keep_acks = keep_acks
        self._heard = heard
        self._lost = lost
        self._began = time.monotonic()
        self._sent: dict[int, float] = {}
        self._write = asyncio.Lock()
        self._answers: set[asyncio.Task[None]] = set()

    async def run(self, channel: aio.Channel) -> None:
        """Hold a session for ever, coming back after each that ends."""
        attempt = 0
        while True:
            opened = time.monotonic()
            try:
                await self.session(channel)
            except aio.AioRpcError as error:
                self.tally.endings[error.code().name] += 1
                if self._lost is not None:
                    self._lost(error)
            if time.monotonic() - opened > GREATEST_BACKOFF_S:
                attempt = 0
            await asyncio.sleep(random.uniform(0.5, 1) * min(2.0**attempt, GREATEST_BACKOFF_S))  # noqa: S311
            attempt += 1

    async def session(self, channel: aio.Channel) -> None:
        """One session, until somebody ends it."""
        # A roll-up may wait in its own task while the reader answers, so reading and writing are apart.
        call: aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(SESSION)()
        await call.write(encode_operator_message(Hello(self.cluster, PROTOCOL)))
        sender = asyncio.create_task(self._send_rollups(call))
        try:
            while True:
                data = await call.read()
                if not isinstance(data, bytes):
                    return
                frame = decode_frame(data)
                if frame is not None:
                    await self._take(call, frame)
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            for answer in self._answers:
                answer.cancel()
            call.cancel()

    async def rollup(self, call: "aio.StreamStreamCall[bytes, bytes]") -> None:
        """Send the demand of now."""
        stamp = time.time_ns()
        rows = self.demand(time.monotonic() - self._began)
        if self._keep_acks:
            self._sent[stamp] = time.monotonic()
        self.tally.rollups += 1
        await self._say(call, encode_rollup_message(self.cluster, rows, stamp))

    async def _send_rollups(self, call: "aio.StreamStreamCall[bytes, bytes]") -> None:
        await self.rollup(call)
        # Operators that came back together must not stay together.
        await asyncio.sleep(self._rollup_interval * random.random())  # noqa: S311  # spreads load
        while True:
            await self.rollup(call)
            await asyncio.sleep(self._rollup_interval)

    async def _take(self, call: "aio.StreamStreamCall[bytes, bytes]", frame: Frame) -> None:
        tally = self.tally
        if self._heard is not None:
            self._heard(frame)
        match frame:
            case RollupAck():
                sent = self._sent.pop(frame.timestamp_ns, None)
                if sent is not None:
                    tally.ack_seconds.append(time.monotonic() - sent)
            case BootstrapRequest():
                tally.bootstraps += 1
                answer = asyncio.create_task(
                    self._answer(call, encode_operator_message(BootstrapAnswer(frame.request_id, BLOB)))
                )
                self._answers.add(answer)
                answer.add_done_callback(self._answers.discard)
            case ReclaimInstruction():
                tally.reclaims += 1
                await self._say(call, encode_operator_message(CordonAck(frame.instruction_id, 1)))
            case NodeState():
                tally.nodes[frame.machine_id] = frame.state.title
            case Resync():
                tally.resyncs += 1
            case _:
                tally.connected += 1

    async def _answer(self, call: "aio.StreamStreamCall[bytes, bytes]", data: bytes) -> None:
        await asyncio.sleep(self._answer_delay)
        with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await self._say(call, data)

    async def _say(self, call: "aio.StreamStreamCall[bytes, bytes]", data: bytes) -> None:
        async with self._write:
            await call.write(data)


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[aio.Channel]:
    channel = dial(address, None)
    try:
        yield channel
    finally:
        await channel.close()


async def _main(cluster: str, address: str, demand: Demand, interval: float) -> None:
    told = ""

    def tell(text: str) -> None:
        """Once, until there is something else to tell."""
        nonlocal told
        if text != told:
            told = text
            print(f"{cluster}: {text}", file=sys.stderr, flush=True)

    operator = ScriptedOperator(
        cluster,
        demand,
        rollup_interval=interval,
        heard=lambda _: tell(f"in session with {address}"),
        lost=lambda error: tell(f"no session with {address}: {error.code().name}: {error.details()}"),
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with connected(address) as channel:
        running = asyncio.create_task(operator.run(channel))
        await stop.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def main(argv: Sequence[str] | None = None) -> int:
    """Play one cluster until a signal; returns the exit status."""
    parser = OneLineParser(
        "python -m bigfleet.scale.operators", description="A cluster's operator that plays a script."
    )
    parser.add_argument("--shard", required=True, metavar="ADDR", help="where the shard serves")
    parser.add_argument("--cluster", required=True, metavar="ID", help="the cluster's id")
    parser.add_argument("--script", required=True, type=Path, metavar="FILE", help="JSON steps of demand")
    parser.add_argument(
        "--interval", type=_seconds, default=10.0, metavar="SECONDS", help="between roll-ups (10)"
    )
    arguments = parser.parse_args(argv)
    cluster, script = arguments.cluster, arguments.script
    if not is_valid_id(cluster):
        parser.error(f"--cluster is {cluster!r}: give 1 to 253 of the characters A-Z a-z 0-9 . _ -")
    try:
        require_local_or_insecure(parse_peer_address(arguments.shard), insecure=False)
    except AddressError as error:
        parser.error(f"--shard: {error}")
    except PlaintextRefusedError:
        parser.error(f"--shard: {arguments.shard} is not on this machine; scripted operators have no TLS")
    try:
        demand = read_script(script.read_bytes(), cluster)
    except OSError as error:
        print(f"cannot read {script} (--script): {error.strerror}", file=sys.stderr)
        return 1
    except ScriptError as error:
        print(f"{script} (--script) {error}", file=sys.stderr)
        return 1
    asyncio.run(_main(cluster, arguments.shard, demand, arguments.interval))
    return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
