"""Who has what and why, in a few log lines: for whoever asks why machines go while Needs wait (§17.1).

Only with ``--phase-attribution-log``, and only now and then: it looks at single machines, which a cycle never
does, and therefore at no more than a bounded number of them.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.cycle import CycleResult
from bigfleet.engine.verdicts import Verdict
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.effects import LogLevel
from bigfleet_base.model import Machine, Profile

EVERY: Final = 20
"""Cycles from one attribution to the next."""
MOST_SAMPLES: Final = 5
MOST_IDS: Final = 12
MOST_MATCHED: Final = 1_000
"""Reclaims that are compared with what is unmet."""


def attribute(ctx: Context, result: CycleResult) -> None:
    """Say what the cycle's phases made of demand, if it is this cycle's turn."""
    if not ctx.settings.phase_attribution or ctx.cycle % EVERY:
        return
    unmet = [verdict for verdict in result.verdicts if not verdict.satisfied]
    reclaims = [action for action in result.decided if action.kind is ActionKind.RECLAIM]
    wanted = _wanted(ctx, islice(reclaims, MOST_MATCHED), unmet)
    gangs = [n for n, verdict in enumerate(result.verdicts) if verdict.need.profile.same is not None]
    ctx.log(
        LogLevel.INFO,
        "phase attribution",
        needs_plain=len(result.verdicts) - len(gangs),
        needs_same=len(gangs),
        p1_unsatisfied=len(unmet),
        p3_reclaims=len(reclaims),
        reclaim_matches_unsatisfied=len(wanted),
    )
    # Those that match are what one looks for.
    for action in sorted(reclaims, key=lambda action: action.machine_id not in wanted)[:MOST_SAMPLES]:
        _reclaim_line(ctx, action, wanted.get(action.machine_id, ""))
    for satisfied, msg in ((False, "gang attribution"), (True, "satisfied gang attribution")):
        sample = [n for n in gangs if result.verdicts[n].satisfied is satisfied][:MOST_SAMPLES]
        held = _held(result, set(sample))
        for n in sample:
            _gang_line(ctx, msg, result.verdicts[n], held[n])


def _wanted(ctx: Context, reclaims: Iterable[Action], unmet: list[Verdict]) -> dict[str, str]:
    """The machines among the reclaims that their own cluster has an unmet Need for, and its fingerprint."""
    profiles: dict[str, dict[str, Profile]] = {}
    for verdict in unmet:
        profile = verdict.need.profile
        profiles.setdefault(verdict.need.cluster_id, {})[profile.fingerprint] = profile
    found = {}
    for action in reclaims:
        machine = _machine(ctx, action)
        for fingerprint, profile in profiles.get(action.cluster, {}).items():
            if machine is not None and machine.matches(profile):
                found[action.machine_id] = fingerprint
                break
    return found


def _machine(ctx: Context, action: Action) -> Machine | None:
    entry = ctx.engine.inventory.find(action.machine_id)
    return None if entry is None else entry.machine


def _reclaim_line(ctx: Context, action: Action, fingerprint: str) -> None:
    machine = _machine(ctx, action)
    ctx.log(
        LogLevel.INFO,
        "reclaim attribution",
        machine=action.machine_id,
        cluster=action.cluster,
        instance_type="" if machine is None else machine.instance_type,
        assigned_fingerprint="" if machine is None else machine.assigned_need_fingerprint,
        matches_fingerprint=fingerprint,
    )


def _held(result: CycleResult, sample: set[int]) -> dict[int, list[str]]:
    """The machines that the sampled Needs hold."""
    held: dict[int, list[str]] = {n: [] for n in sample}
    if sample:
        for machine_id, n in result.holders.held.items():
            if n in held:
                held[n].append(machine_id)
    return held


def _gang_line(ctx: Context, msg: str, verdict: Verdict, machine_ids: list[str]) -> None:
    need = verdict.need
    ctx.log(
        LogLevel.INFO,
        msg,
        cluster=need.cluster_id,
        fingerprint=need.profile.fingerprint,
        group=need.group,
        domain=verdict.same_domain or "",
        reason=verdict.reason.value,
        claimed=verdict.claimed,
        parked_age=verdict.parked_age,
        machines=tuple(sorted(machine_ids)[:MOST_IDS]),
    )
