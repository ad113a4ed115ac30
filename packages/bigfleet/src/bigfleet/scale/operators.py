"""Scripted operators: clusters without Kubernetes, over the real wire.

Each holds a session to a shard, sends the roll-ups that its script calls for, and answers what it is asked.
One process can be one of them (``python -m bigfleet.scale.operators``, for the demo) or thousands (for load).
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from grpc import aio

from bigfleet_base.model import Need, Operator, Profile, Requirement, ResourceVector
from bigfleet_base.model.frames import (
    BootstrapRequest,
    Frame,
    NodeState,
    ReclaimInstruction,
    Resync,
    RollupAck,
)
from bigfleet_base.model.penalty import PINNED, ZERO, bound_dollars
from bigfleet_base.model.quantity import QuantityError
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY
from bigfleet_base.wire import dial
from bigfleet_base.wire.quantities import decode_demand
from bigfleet_base.wire.rollups import encode_rollup_message
from bigfleet_base.wire.session import (
    BootstrapAnswer,
    CordonAck,
    Hello,
    decode_frame,
    encode_operator_message,
)

SESSION: Final = "/bigfleet.v1alpha1.Shard/Session"
PROTOCOL: Final = "v1alpha1"
BLOB: Final = b"#cloud-config\n# joins nothing: scripted operators have no cluster\n"
GREATEST_BACKOFF_S: Final = 30.0

Demand = Callable[[float], Sequence[Need]]
"""The rows of a cluster, so many seconds after it began."""


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
    ) -> None:
        self.cluster = cluster
        self.demand = demand
        self.tally = Tally()
        self._rollup_interval = rollup_interval
        self._answer_delay = answer_delay
        self._keep_acks = keep_acks
        self._heard = heard
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


class ScriptError(ValueError):
    """A script that cannot be played; the message says where and why."""


def read_script(text: str, cluster: str) -> Demand:
    """Demand from a JSON script: steps that follow one another and start again at the end.

    ``[{"for_s": 20, "needs": [{"instance_type": ["standard-4"], "count": 3, "unit": {"cpu": "4"},
    "priority": 1000}]}, …]``
    """
    try:
        steps = json.loads(text)
    except json.JSONDecodeError as error:
        raise ScriptError(f"the script is not JSON: {error}") from None
    if not isinstance(steps, list) or not steps:
        raise ScriptError("the script is no list of steps")
    parsed = [(_seconds(step, n), _rows(step, n, cluster)) for n, step in enumerate(steps)]
    period = sum(length for length, _ in parsed)

    def demand(elapsed: float) -> Sequence[Need]:
        left = elapsed % period
        for length, rows in parsed:
            if left < length:
                return rows
            left -= length
        return parsed[-1][1]

    return demand


def _seconds(step: Any, number: int) -> float:
    length = step.get("for_s") if isinstance(step, dict) else None
    if not isinstance(length, int | float) or not length > 0:
        raise ScriptError(f"step {number}: for_s must be a number of seconds above 0")
    return float(length)


def _rows(step: dict[str, Any], number: int, cluster: str) -> list[Need]:
    rows = []
    for place, row in enumerate(step.get("needs", [])):
        where = f"step {number}, need {place}"
        try:
            unit = decode_demand(row["unit"])
            count = int(row["count"])
            requirements = [
                Requirement(key, Operator.IN, tuple(row[name]))
                for name, key in (("instance_type", INSTANCE_TYPE_KEY), ("zone", ZONE_KEY))
                if name in row
            ]
            group = ""
            if "same" in row:
                requirements.append(Requirement(row["same"], Operator.SAME, ()))
                group = f"{row['same']}/{place}"
            profile = Profile(
                tuple(requirements),
                priority=int(row.get("priority", 0)),
                interruption_bucket=_bucket(row.get("interruption_penalty", 0)),
                reclamation_bucket=_bucket(row.get("reclamation_penalty", 0)),
            )
        except (KeyError, TypeError, ValueError, QuantityError) as error:
            raise ScriptError(f"{where}: {error!r}") from None
        rows.append(Need(cluster, profile, ResourceVector(unit * count), unit, group))
    return rows


def _bucket(dollars: float) -> int:
    return next(bucket for bucket in range(ZERO, PINNED + 1) if dollars <= bound_dollars(bucket))


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[aio.Channel]:
    channel = dial(address, None)
    try:
        yield channel
    finally:
        await channel.close()


async def _main(cluster: str, address: str, demand: Demand, interval: float) -> None:
    operator = ScriptedOperator(cluster, demand, rollup_interval=interval)
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
    parser = argparse.ArgumentParser(description="A cluster's operator that plays a script.")
    parser.add_argument("--shard", required=True, metavar="ADDR", help="where the shard serves")
    parser.add_argument("--cluster", required=True, help="the cluster's id")
    parser.add_argument("--script", required=True, type=Path, metavar="FILE", help="JSON steps of demand")
    parser.add_argument(
        "--interval", type=float, default=10.0, metavar="SECONDS", help="between roll-ups (10)"
    )
    arguments = parser.parse_args(argv)
    try:
        demand = read_script(arguments.script.read_text(encoding="utf-8"), arguments.cluster)
    except (OSError, ScriptError) as error:
        print(f"{arguments.script}: {error}", file=sys.stderr)
        return 1
    asyncio.run(_main(arguments.cluster, arguments.shard, demand, arguments.interval))
    return 0


if __name__ == "__main__":
    sys.exit(main())
