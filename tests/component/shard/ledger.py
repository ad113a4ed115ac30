"""The fake provider as a process that writes down every mutation it answers: ``python -m`` this module.

Its callers are far away. A call that was sent arrives, also when its sender has been killed meanwhile and a
successor is at work: that is what fences are for.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import grpc
from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_base.telemetry import Log
from bigfleet_providerkit import cli
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.driver import Driver
from bigfleet_providerkit.effects import Code
from bigfleet_providerkit.fake import FakeBackend
from bigfleet_providerkit.fake.knobs import Latency, read_latency
from bigfleet_providerkit.metrics import Telemetry
from bigfleet_providerkit.process import Provider, Serving
from bigfleet_providerkit.server import Context, Refused, Service
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.work import NANOS

SERVICE = "bigfleet.tests.Ledger"
MUTATIONS = ("Create", "Configure", "Drain", "Delete")


class LedgerBackend(FakeBackend):
    """The fake, with what a test adds to it."""

    ledger: TextIO
    echoes: bool
    travel: Latency
    late: tuple[float, Latency]

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        add = parser.add_argument
        add("--ledger", required=True, metavar="FILE", help="one JSON line for each mutation answered")
        add("--no-echo", action="store_true", help="know nothing of metadata on Create and Drain")
        add("--travel", default="0s", help="how long a mutation is on its way, and its answer")
        add("--late", default="0:0s", metavar="SHARE:TIME", help="mutations that are on their way for longer")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> "LedgerBackend":
        backend = super().from_options(options)
        assert isinstance(backend, cls)
        share, _, travel = options.late.partition(":")
        backend.ledger = Path(options.ledger).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115  # until the process ends
        backend.echoes = not options.no_echo
        backend.travel = read_latency(options.travel)
        backend.late = (float(share), read_latency(travel))
        return backend


class LedgerProvider(Provider):
    def __init__(self, backend: LedgerBackend, settings: Settings, serving: Serving, log: Log) -> None:
        super().__init__(backend, settings, serving, log, partial(_LedgerService, backend))


class _LedgerService(Service):
    def __init__(
        self, backend: LedgerBackend, core: Core, driver: Driver, telemetry: Telemetry, *, is_plaintext: bool
    ) -> None:
        super().__init__(core, driver, telemetry, is_plaintext=is_plaintext)
        self._backend = backend
        self._rng = random.Random(f"{backend.substrate.knobs.seed}/travel")
        self._calls: set[asyncio.Task[tuple[Code, str, bytes]]] = set()

    def add_to(self, server: aio.Server) -> None:
        super().add_to(server)
        extra: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Hosts": grpc.unary_unary_rpc_method_handler(self._hosts),
            "Release": grpc.unary_unary_rpc_method_handler(self._release),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, extra),))

    def _handler(
        self, method: str, behaviour: Callable[[Any, Context], Awaitable[bytes]], request: Any
    ) -> Any:
        if method not in MUTATIONS:
            return super()._handler(method, behaviour, request)

        async def arrived(message: Any, context: Context) -> bytes:
            call = asyncio.get_running_loop().create_task(self._answer(method, behaviour, message, context))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            # gRPC cancels this when the caller is gone; what was sent arrives all the same.
            code, text, answer = await asyncio.shield(call)
            if code is not Code.OK:
                raise Refused(code, text)
            await asyncio.sleep(self._backend.travel.draw(self._rng) / NANOS)
            return answer

        return super()._handler(method, arrived, request)

    async def _answer(
        self,
        method: str,
        behaviour: Callable[[Any, Context], Awaitable[bytes]],
        message: Any,
        context: Context,
    ) -> tuple[Code, str, bytes]:
        share, late = self._backend.late
        travel = late if self._rng.random() < share else self._backend.travel
        await asyncio.sleep(travel.draw(self._rng) / NANOS)
        if not self._backend.echoes and method in ("Create", "Drain"):
            message.ClearField("shard_metadata")
        code, text, answer = Code.OK, "", b""
        try:
            answer = await behaviour(message, context)
        except Refused as refused:
            code, text = refused.code, str(refused)
        ack = pb.TransitionAck.FromString(answer)
        line = {
            "rpc": method,
            "machine": message.machine_id,
            "cluster": getattr(message, "cluster_id", ""),
            "shard": message.shard_id,
            "epoch": message.shard_epoch,
            "sequence": message.sequence_number,
            "code": code.value,
            "text": text,
            "operation": ack.operation_id,
            "state": MachineState(ack.machine.state).name,
            "at": time.time_ns(),
        }
        self._backend.ledger.write(json.dumps(line) + "\n")
        return code, text, answer

    async def _hosts(self, _request: bytes, _context: Context) -> bytes:
        """How many hosts each machine has."""
        hosts = self._backend.substrate.hosts.values()
        return json.dumps(Counter(host.machine_id for host in hosts)).encode()

    async def _release(self, _request: bytes, _context: Context) -> bytes:
        """Let transitions that wait end, and later ones not wait."""
        substrate = self._backend.substrate
        substrate.knobs = replace(substrate.knobs, stage=frozenset())
        for machine_id in substrate.staged():
            substrate.complete(machine_id, time.monotonic_ns())
        return b""


if __name__ == "__main__":
    sys.exit(cli.main(LedgerBackend, None, LedgerProvider))
