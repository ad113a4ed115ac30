"""The shortfall ledger and its report (§14)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from bigfleet_base.model import EMPTY, Profile, ResourceVector
from tests.oracle.context import Context
from tests.oracle.results import Part, Phase2Result, Shortfall

MEMORY_TICKS: Final = 3
REPORT_ROWS: Final = 100

Ledger = dict[tuple[str, str], Part]


def record(context: Context, second: Phase2Result, ledger: Mapping[tuple[str, str], Part]) -> Ledger:
    """One part per (cluster, fingerprint): deficits summed, ages in ticks.

    "Kept for 3 cycles" is read as: remembered through three absent ticks, forgotten in the fourth (L2).
    """
    tick = int(context.inputs.tick)
    deficits: dict[tuple[str, str], ResourceVector] = {}
    profiles: dict[tuple[str, str], Profile] = {}
    for inversion in second.unresolved:
        need = context.rows[inversion.index].need
        key = (need.cluster_id, need.profile.fingerprint)
        deficits[key] = deficits.get(key, EMPTY) + inversion.deficit
        profiles[key] = need.profile

    after: Ledger = {}
    for key, deficit in deficits.items():
        known = ledger.get(key)
        after[key] = Part(profiles[key], deficit, age=1 if known is None else known.age + tick)
    for key, known in ledger.items():
        absent = known.absent_ticks + tick
        if key not in deficits and absent <= MEMORY_TICKS:
            after[key] = replace(known, deficit=EMPTY, visible=False, absent_ticks=absent)
    return after


def report(ledger: Mapping[tuple[str, str], Part]) -> tuple[Shortfall, ...]:
    """One row per fingerprint over its visible parts; the worst hundred (§14)."""
    rows: dict[str, Shortfall] = {}
    for (_, fingerprint), part in ledger.items():
        if part.visible:
            known = rows.get(fingerprint, Shortfall(part.profile, EMPTY, 0))
            rows[fingerprint] = Shortfall(
                part.profile, known.deficit + part.deficit, max(known.age, part.age)
            )
    return tuple(
        sorted(rows.values(), key=lambda r: (-r.profile.priority, -r.age, r.profile.fingerprint))[
            :REPORT_ROWS
        ]
    )
