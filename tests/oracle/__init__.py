"""The specification of the decision engine, written to be read beside it rather than to be fast.

Section numbers are those of engine.md; one module per group of sections, in the order of a cycle:
``world`` (§2.5–§4), ``demand`` (§5, §13.2), ``context`` (§6, §10.1), ``normalise`` (§8), ``parking`` (§9),
``assign`` with ``domains`` and ``spread`` (§10), ``preempt`` (§11), ``reclaim`` (§12), ``rails`` (§13),
``ledger`` (§14), ``verdicts`` (§15), and ``cycle`` (§7) that runs them. ``results`` holds the values.

It imports the standard library and ``bigfleet_base.model`` and nothing else: it judges the engine, so the
two share no code.
"""

from tests.oracle.cycle import run_cycle
from tests.oracle.demand import NeedsTable
from tests.oracle.world import Snapshot, World

__all__ = ["NeedsTable", "Snapshot", "World", "run_cycle"]
