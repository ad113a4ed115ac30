"""Fault hooks: a backend that fails on request, so that conformance tests the provider itself.

Off unless ``--fault-hooks`` is given. Selectors: conformance.md §1.5 and §3.2.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from bigfleet_providerkit.backend import Backend, Host, HostStatus, MachineView, Offering, Operation
from bigfleet_providerkit.errors import Terminal

CREATE_LABEL: Final = "conformance.fault/create"
_READY_AFTER: Final = re.compile(r"fault-ready-after-([0-9]{1,4})s")


def fault_slots(offerings: Sequence[Offering]) -> list[Offering]:
    """The labelled slots that the hooks add: six whose create fails and two whose create hangs."""
    first = offerings[0]
    return [
        replace(first, count=count, labels={**first.labels, CREATE_LABEL: fault})
        for fault, count in (("error", 6), ("hang", 2))
    ]


def with_fault_hooks(backend: Backend) -> Backend:
    """Put hooks before the backend's own methods, and change nothing else of it."""
    own: Any = backend
    ready_at: dict[str, float] = {}
    create, configure, drain = own.create, own.configure, own.drain
    node_ready, inspect = own.node_ready, own.inspect

    async def faulty_create(op: Operation) -> Host:
        fault = op.machine.labels.get(CREATE_LABEL)
        if fault == "error":
            raise Terminal("fault requested by the slot's label")
        if fault == "hang":
            await asyncio.Event().wait()
        host: Host = await _await(create, op)
        return host

    async def faulty_configure(op: Operation) -> None:
        match op.cluster_id:
            case "fault-error":
                raise Terminal("fault requested by the cluster id")
            case "fault-timeout":
                await asyncio.Event().wait()
            case "fault-slow-ok":
                await _outlive(op.timeout + 1)
                return
        if after := _READY_AFTER.fullmatch(op.cluster_id):
            ready_at[op.machine.id] = asyncio.get_running_loop().time() + int(after[1])
        await _await(configure, op)

    async def faulty_node_ready(op: Operation) -> bool:
        if op.cluster_id == "fault-readiness-block":
            return False
        if asyncio.get_running_loop().time() < ready_at.get(op.machine.id, 0.0):
            return False
        ready: bool = await _await(node_ready, op)
        return ready

    async def faulty_drain(op: Operation) -> None:
        if op.cluster_id == "fault-drain-error":
            raise Terminal("fault requested by the cluster id")
        await _await(drain, op)

    async def faulty_inspect(machine: MachineView) -> HostStatus:
        if machine.cluster == "fault-host-loss":
            return HostStatus.GONE
        status: HostStatus = await _await(inspect, machine)
        return status

    own.create, own.configure, own.drain = faulty_create, faulty_configure, faulty_drain
    if _has(backend, "node_ready"):
        own.node_ready = faulty_node_ready
    if _has(backend, "inspect"):
        own.inspect = faulty_inspect
    return backend


def _has(backend: Backend, method: str) -> bool:
    return getattr(type(backend), method) is not getattr(Backend, method)


async def _await(method: Any, argument: object) -> Any:
    if asyncio.iscoroutinefunction(method):
        return await method(argument)
    return await asyncio.get_running_loop().run_in_executor(None, method, argument)


async def _outlive(seconds: float) -> None:
    """Wait, whatever cancellation comes."""
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
