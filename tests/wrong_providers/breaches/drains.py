"""Providers that end workloads too early, too late, or leave something of them behind (localproc)."""

from dataclasses import replace
from typing import Any

from bigfleet_providerkit.backend import Operation
from bigfleet_providerkit.examples.localproc import backend
from bigfleet_providerkit.examples.localproc.backend import LocalProc
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong


@wrong(breaks="P-110", caught_by="X110 X111", base="localproc")
def drain_kills_at_once(kit: Kit) -> None:
    """Workloads are killed whatever their grace."""
    graced(kit, 0)


@wrong(breaks="P-111 P-112", caught_by="X111 X112", base="localproc")
def drain_never_kills(kit: Kit) -> None:
    """A workload that does not end when it is asked to is waited for."""
    graced(kit, 3_600)


@wrong(breaks="P-113", caught_by="X113", base="localproc")
def a_drained_host_is_not_scrubbed(kit: Kit) -> None:
    """The files of a binding outlive it."""
    kit.put(backend, "_clear", lambda folder, *, but: None)


def graced(kit: Kit, seconds: int) -> None:
    """Drain with another grace than was asked for."""

    @kit.around(LocalProc, "drain")
    async def drain(original: Any, localproc: Any, op: Operation) -> None:
        await original(localproc, replace(op, grace_seconds=seconds))
