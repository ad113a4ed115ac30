"""Fault hooks: a backend that fails on request, so that conformance tests the provider itself.

Off unless ``--fault-hooks`` is given. Selectors: conformance.md §1.5 and §3.2, and two more cluster ids:
``fault-drain-after-<n>s`` (a drain takes that long) and ``fault-interruption`` (notice of an imminent kill).
"""

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Final

from bigfleet_providerkit.backend import (
    Backend,
    Host,
    HostStatus,
    Interruption,
    MachineView,
    Offering,
    Operation,
    overrides,
)
from bigfleet_providerkit.errors import NotFound, Terminal
from bigfleet_providerkit.offerings import seed_offerings

CREATE_LABEL: Final = "conformance.fault/create"
_READY_AFTER: Final = re.compile(r"fault-ready-after-([0-9]{1,4})s")
_NOTICE_AFTER_S: Final = 0.3
_DRAIN_AFTER: Final = re.compile(r"fault-drain-after-([0-9]{1,4})s")


def with_fault_hooks(backend: Backend) -> Backend:
    """Put hooks before the backend's own methods: they act on request and otherwise hand on to them.

    A backend that cannot be asked whether a node is ready, or a host there, can be with the hooks.
    """
    own: Any = backend
    offerings, create, configure, drain = own.offerings, own.create, own.configure, own.drain
    node_ready = own.node_ready if overrides(backend, "node_ready") else None
    own_inspect = own.inspect if overrides(backend, "inspect") else None
    delete = own.delete if overrides(backend, "delete") else None
    interruptions = own.interruptions if overrides(backend, "interruptions") else None
    ready_at: dict[tuple[str, str], float] = {}
    notices: asyncio.Queue[Interruption | Exception] = asyncio.Queue()

    async def faulty_offerings() -> Sequence[Offering]:
        given: Sequence[Offering] = await _call(offerings)
        return [*given, *_fault_slots((*given, *seed_offerings(1))[0])]

    async def faulty_create(op: Operation) -> Host:
        fault = op.machine.labels.get(CREATE_LABEL)
        if fault == "error":
            raise Terminal("fault requested by the slot's label")
        if fault == "hang":
            await asyncio.Event().wait()
        host: Host = await _call(create, op)
        return host

    async def faulty_configure(op: Operation) -> None:
        match op.cluster_id:
            case "fault-error":
                # As careless hooks on hosts do: the blob must not get further than the kit (P-86).
                blob = op.bootstrap_blob.decode(errors="replace")
                raise Terminal(f"fault requested by the cluster id; the blob was {blob!r}")
            case "fault-timeout":
                await asyncio.Event().wait()
            case "fault-slow-ok":
                await _outlive(op.timeout + 1)
                return
        if after := _READY_AFTER.fullmatch(op.cluster_id):
            ready_at[op.machine.id, op.cluster_id] = asyncio.get_running_loop().time() + int(after[1])
        await _call(configure, op)

    async def faulty_node_ready(op: Operation) -> bool:
        if op.cluster_id == "fault-readiness-block":
            return False
        if asyncio.get_running_loop().time() < ready_at.get((op.machine.id, op.cluster_id), 0.0):
            return False
        ready: bool = True if node_ready is None else await _call(node_ready, op)
        if ready and op.cluster_id == "fault-interruption":
            # Once it is at work, so that a reader sees the machine without the notice and with it.
            notice = Interruption(op.machine.id, imminent=True)
            asyncio.get_running_loop().call_later(_NOTICE_AFTER_S, notices.put_nowait, notice)
        return ready

    async def faulty_drain(op: Operation) -> None:
        if op.cluster_id == "fault-drain-error":
            raise Terminal("fault requested by the cluster id")
        if after := _DRAIN_AFTER.fullmatch(op.cluster_id):
            await asyncio.sleep(int(after[1]))
        await _call(drain, op)

    async def faulty_inspect(machine: MachineView) -> HostStatus:
        if machine.cluster == "fault-host-loss":
            # Really, where that is possible: a host that is said to be gone must not be found again.
            if delete is not None:
                with contextlib.suppress(NotFound):
                    await _call(delete, Operation(machine, "fault-host-loss", timeout=1.0))
            return HostStatus.GONE
        status: HostStatus = HostStatus.RUNNING if own_inspect is None else await _call(own_inspect, machine)
        return status

    async def own_interruptions() -> None:
        if interruptions is not None:
            try:
                async for notice in interruptions():
                    notices.put_nowait(notice)
            except Exception as error:  # handed on: whoever listens tries again
                notices.put_nowait(error)

    async def faulty_interruptions() -> AsyncIterator[Interruption]:
        listening = asyncio.create_task(own_interruptions())
        try:
            while not isinstance(notice := await notices.get(), Exception):
                yield notice
            raise notice
        finally:
            listening.cancel()

    own.offerings = faulty_offerings
    own.create, own.configure, own.drain = faulty_create, faulty_configure, faulty_drain
    own.readiness, own.node_ready, own.inspect = "probe", faulty_node_ready, faulty_inspect
    own.interruptions = faulty_interruptions
    return backend


def _fault_slots(pattern: Offering) -> list[Offering]:
    """Six slots whose create fails and two whose create hangs."""
    return [
        replace(pattern, count=count, labels={**pattern.labels, CREATE_LABEL: fault})
        for fault, count in (("error", 6), ("hang", 2))
    ]


async def _call(method: Any, *arguments: object) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method(*arguments)
    value = await asyncio.get_running_loop().run_in_executor(None, method, *arguments)
    return await value if inspect.isawaitable(value) else value


async def _outlive(seconds: float) -> None:
    """Wait, whatever cancellation comes."""
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
