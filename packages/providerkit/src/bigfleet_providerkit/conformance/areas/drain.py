"""X110 to X113: what Drain does to workloads that really run (provider.md §10).

With ``--workloads DIR`` the hosts run bootstrap blobs that begin with ``#!/bin/sh``, and see DIR: so a blob
can start a workload, and what becomes of it can be read there.
"""

import asyncio
import secrets
import shlex
import time
from pathlib import Path
from typing import Final

from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.checks import CheckFailed, SkipFixture, check
from bigfleet_providerkit.conformance.client import CLUSTER, OTHER_CLUSTER
from bigfleet_providerkit.conformance.trial import Trial

_EXIT_S: Final = 2
_GRACE_S: Final = 3
_LONG_GRACE_S: Final = 30
_SLACK_S: Final = 0.3
_SILENT_S: Final = 1.0
"""So long may a workload give no sign before it is killed, where many share a processor."""
_AT_ONCE_S: Final = 1.5
_POLITE: Final = f"""
trap 'echo told >> "$log"; n=0; while [ $n -lt {_EXIT_S * 10} ]; do sleep 0.1; n=$((n + 1)); done
    echo ended >> "$log"; exit 0' TERM
echo started >> "$log"
while :; do sleep 0.05; done
"""
"""Ends 2 s after it is asked to."""
_STUBBORN: Final = """
trap '' TERM
echo started >> "$log"
while :; do echo alive >> "$log"; sleep 0.05; done
"""
"""Does not end when it is asked to."""


@check("X110")
async def drain_waits_for_workloads(t: Trial) -> None:
    workload = Workload(t)
    machine_id = await workload.start(_POLITE)
    started = time.monotonic()
    expect.ok(await t.provider.drain(machine_id, grace=_LONG_GRACE_S))
    await t.settle(machine_id, S.IDLE, _LONG_GRACE_S - 5)
    took = time.monotonic() - started
    said = workload.said()
    expect.that(
        "ended" in said,
        f"the workload needs {_EXIT_S} s to end and was {'killed' if 'told' in said else 'never asked to'}:"
        f" Drain with grace {_LONG_GRACE_S} took {took:.1f} s",
    )


@check("X111")
async def drain_ends_with_its_grace(t: Trial) -> None:
    workload = Workload(t)
    machine_id = await workload.start(_STUBBORN)
    began = time.time()
    expect.ok(await t.provider.drain(machine_id, grace=_GRACE_S))
    await t.settle(machine_id, S.IDLE, _GRACE_S + t.options.settle["drain"])
    lived = await workload.last_sign() - began
    expect.that(
        lived >= _GRACE_S - _SILENT_S,
        f"the workload was killed {lived:.1f} s after the Drain, and its grace was {_GRACE_S} s",
    )


@check("X112")
async def without_grace_drain_kills(t: Trial) -> None:
    workload = Workload(t)
    machine_id = await workload.start(_STUBBORN)
    began = time.time()
    expect.ok(await t.provider.drain(machine_id, grace=0))
    await t.settle(machine_id, S.IDLE)
    lived = await workload.last_sign() - began
    expect.that(
        lived <= _AT_ONCE_S,
        f"the workload lived for {lived:.1f} s after a Drain with grace 0, expected no more",
    )


@check("X113")
async def a_drained_host_is_scrubbed(t: Trial) -> None:
    first, second = Workload(t), Workload(t)
    mark = secrets.token_hex(16)
    machine_id = await first.start(
        'echo started >> "$log"',
        before=f'pwd >> "$log"\necho {mark} > credentials\nmkdir -p kubelet\necho {mark} > kubelet/pod\n',
    )
    await t.drain(machine_id)
    # In two halves, or the search would find itself.
    halves = f"one={mark[:16]} two={mark[16:]}\n"
    places = f'. "$(head -n 1 {shlex.quote(str(first.log))})"'
    await second.start(
        'echo started >> "$log"',
        machine_id=machine_id,
        before=f'{halves}grep -rlF "$one$two" {places} >> "$log" 2> /dev/null || true\n',
    )
    found = [line for line in second.said() if line != "started"]
    expect.that(
        not found,
        f"the host of machine {machine_id} was drained, and {len(found)} files of its previous cluster are"
        f" left, {found[:1]} first",
    )
    await t.drain(machine_id)


class Workload:
    """Something that runs on a host, and writes down what becomes of it."""

    def __init__(self, t: Trial) -> None:
        if not t.options.workloads:
            raise SkipFixture("needs --workloads: a folder that hosts see, which run bootstrap blobs")
        self._t = t
        self.log = Path(t.options.workloads).resolve() / f"workload-{secrets.token_hex(6)}"

    async def start(self, script: str, *, machine_id: str = "", before: str = "") -> str:
        """Configure a machine with a bootstrap that leaves the script running; its id."""
        cluster = OTHER_CLUSTER if machine_id else CLUSTER
        machine_id = machine_id or await self._t.idle()
        run = f"{before}(\n{script}\n) < /dev/null > /dev/null 2>&1 &\n"
        blob = f"#!/bin/sh\nlog={shlex.quote(str(self.log))}\n{run}"
        expect.ok(await self._t.provider.configure(machine_id, cluster, blob=blob.encode()))
        await self._t.settle(machine_id, S.CONFIGURED)
        try:
            async with asyncio.timeout(self._t.options.settle["configure"]):
                while True:
                    if "started" in self.said():
                        return machine_id
                    await asyncio.sleep(self._t.options.poll)
        except TimeoutError:
            raise SkipFixture(
                f"no workload came up on machine {machine_id}: its host does not run bootstrap blobs that"
                " begin with #!/bin/sh, or does not see the folder of --workloads"
            ) from None

    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    async def last_sign(self) -> float:
        """When it last wrote something. It must have stopped."""
        last = self.log.stat().st_mtime
        await asyncio.sleep(_SLACK_S)
        if self.log.stat().st_mtime != last:
            raise CheckFailed("the machine is IDLE, and a workload of its previous cluster still runs on it")
        return last
