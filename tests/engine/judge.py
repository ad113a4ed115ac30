"""The interface through which every scenario and invariant asks an implementation for its decisions.

``IMPLEMENTATIONS`` is the one place that names them: a scenario runs once for each entry. An adapter keeps
its implementation's inventory, demand and carried state, and answers in the plain values of
``tests.oracle.results``, so that two implementations compare field by field.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from bigfleet_base.model import Machine, Need
from tests.engine.adapter import EngineJudge
from tests.oracle import NeedsTable, World, run_cycle
from tests.oracle.results import Carried, CycleInput, CycleResult, Ingest, Key, Memory, Options


class Judge(Protocol):
    """One implementation of the decision engine, fresh from a restart."""

    def insert(self, machine: Machine, now: int, *, preempted_for: Key | None = None) -> None:
        """A machine seen for the first time; ``preempted_for`` if the provider echoed it."""

    def apply(
        self,
        machine: Machine,
        now: int,
        *,
        started: bool = False,
        preempted_for: Key | None = None,
        drain_deadline: int | None = None,
        delete_unsupported: bool = False,
        observed: bool = False,
    ) -> None:
        """A new record of a known machine: over an edge of the lifecycle or within its state."""

    def remove(self, machine_id: str) -> None:
        """The provider has no such machine any more."""

    def machines(self) -> Mapping[str, Machine]:
        """All records."""

    def memory(self, machine_id: str) -> Memory:
        """What is remembered beside the record."""

    def rollup(self, cluster: str, rows: Sequence[Need], now: int, *, guard: bool = False) -> Ingest:
        """One roll-up of a cluster."""

    def demand(self) -> Sequence[Need]:
        """The NeedsTable's snapshot."""

    def cycle(self, inputs: CycleInput, options: Options) -> CycleResult:
        """Decide once, on inventory and demand as they are."""


class OracleJudge:
    """The specification itself."""

    def __init__(self) -> None:
        self._world = World()
        self._needs = NeedsTable()
        self._carried = Carried()
        self.insert = self._world.insert
        self.apply = self._world.apply
        self.remove = self._world.remove
        self.machines = self._world.machines
        self.memory = self._world.memory

    def rollup(self, cluster: str, rows: Sequence[Need], now: int, *, guard: bool = False) -> Ingest:
        return self._needs.apply_rollup(cluster, rows, now, guard=guard)

    def demand(self) -> Sequence[Need]:
        return self._needs.snapshot()

    def cycle(self, inputs: CycleInput, options: Options) -> CycleResult:
        result = run_cycle(
            self._world.snapshot(),
            self._needs.snapshot(),
            self._needs.reported,
            self._carried,
            inputs,
            options,
        )
        self._carried = result.carried
        return result


NewJudge = Callable[[], Judge]

IMPLEMENTATIONS: Final[Mapping[str, NewJudge]] = {"oracle": OracleJudge, "engine": EngineJudge}
