"""One cycle's view of the fleet: its stocks, and who owns what (engine.md §10.1, §10.2)."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from bigfleet.engine.cells import Call, Cell
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.matching import Matcher
from bigfleet.engine.stock import Row, Stock, in_order
from bigfleet_base.model import MachineState, Need, ResourceVector, effective_cost, penalty

Identities = Mapping[str, Collection[tuple[str, str]]]
"""By cluster, the (fingerprint, group) of all its demand."""


class Supply:
    """Stocks of a frozen inventory and the questions the phases ask of them."""

    def __init__(
        self, inventory: Inventory, matcher: Matcher, identities: Identities, reported: frozenset[str]
    ) -> None:
        self.inventory = inventory
        self.reported = reported
        self._matcher = matcher
        self._stocks: dict[Cell, Stock] = {}
        self._by_state: dict[MachineState, list[Stock]] = {}
        self._fitting: dict[tuple[MachineState, str, ResourceVector], list[Stock]] = {}
        self._identities = identities
        self._ownerless = [s for s in self.stocks(MachineState.CREATING) if self._is_ownerless(s)]
        self._unstamped_drains = [s for s in self.stocks(MachineState.DRAINING) if self._is_unstamped(s)]

    def stocks(self, state: MachineState) -> list[Stock]:
        """All stocks of a state."""
        known = self._by_state.get(state)
        if known is None:
            known = self._by_state[state] = self._of(self.inventory.cells(state))
        return known

    def cluster_stocks(self, cluster: str, state: MachineState) -> list[Stock]:
        """The stocks of a state that are bound to a cluster."""
        return self._of(self.inventory.cluster_cells(cluster, state))

    def suits(self, need: Need, stock: Stock) -> bool:
        """Whether the machines meet the Need's Profile and cover its largest unit."""
        return self._matcher.suits(need.profile, need.min_unit, stock.cell.machine_class)

    def suitable(self, need: Need, stocks: Iterable[Stock]) -> list[Stock]:
        """Those that suit."""
        return [stock for stock in stocks if self.suits(need, stock)]

    def suitable_in(self, need: Need, state: MachineState) -> list[Stock]:
        """All stocks of a state that suit; Needs of one Profile and unit share the answer."""
        key = (state, need.profile.fingerprint, need.min_unit)
        known = self._fitting.get(key)
        if known is None:
            known = self._fitting[key] = self.suitable(need, self.stocks(state))
        return known

    def owns(self, row: Row, stock: Stock) -> bool:
        """Whether the machines were bought for this Need."""
        binding = stock.cell.binding
        unbound = stock.cell.state in (MachineState.CREATING, MachineState.IDLE)
        cluster = binding.target_cluster if unbound else binding.cluster
        return cluster == row.demand.need.cluster_id and binding.identity in row.demand.identities

    def foreign(self, row: Row, stock: Stock) -> bool:
        """Whether bound machines of the Need's cluster were bought for another Need of its demand."""
        identity = stock.cell.binding.identity
        return (
            identity not in row.demand.identities and identity in self._identities[row.demand.need.cluster_id]
        )

    def creditable(self, row: Row) -> tuple[list[list[Stock]], list[list[Stock]]]:
        """What counts for a Need without being bought, in visiting order: first what nobody else of its
        cluster was given, then what is foreign."""
        need = row.demand.need
        usual: list[list[Stock]] = []
        foreign: list[list[Stock]] = []
        for state in (MachineState.CONFIGURED, MachineState.CONFIGURING):
            bound = self.suitable(need, self.cluster_stocks(need.cluster_id, state))
            for group in in_order(bound, keep_order):
                # The partition is stable, so each side keeps the order of the whole.
                theirs = [stock for stock in group if self.foreign(row, stock)]
                ours = [stock for stock in group if stock not in theirs]
                usual += [ours] if ours else []
                foreign += [theirs] if theirs else []
        own = [s for s in self.suitable_in(need, MachineState.CREATING) if self.owns(row, s)]
        ownerless = self.suitable(need, self._ownerless)
        usual += [group for group in (own, ownerless) if group]
        return usual, foreign

    def own_idle(self, row: Row, domain_key: str | None) -> list[Stock]:
        """The Need's own Idle machines that it may take, of a gang those in its domain."""
        if row.parked:
            return []
        return [
            stock for stock in self.candidates(row, MachineState.IDLE, domain_key) if self.owns(row, stock)
        ]

    def candidates(self, row: Row, state: MachineState, domain_key: str | None) -> list[Stock]:
        """Idle or Speculative machines that suit and are not held off, of a gang those in its domain."""
        call = Call.CONFIGURE if state is MachineState.IDLE else Call.CREATE
        return [
            stock
            for stock in self.suitable_in(row.demand.need, state)
            if not stock.cell.key.held_off & call
            and (domain_key is None or stock.cell.machine_class.lookup(domain_key) == row.domain)
        ]

    def passes(self, row: Row, domain_key: str | None) -> Iterator[list[list[Stock]]]:
        """The four passes of acquisition (engine.md §10.4), each as groups in candidate order."""
        need = row.demand.need
        bound = penalty.bound_dollars(need.profile.interruption_bucket)
        idle = self.candidates(row, MachineState.IDLE, domain_key)
        speculative = self.candidates(row, MachineState.SPECULATIVE, domain_key)
        own = [stock for stock in idle if self.owns(row, stock)]
        others = [stock for stock in idle if stock not in own]

        def ordered(stocks: Iterable[Stock]) -> list[list[Stock]]:
            return list(in_order(stocks, lambda stock: candidate_key(stock, bound)))

        def affordable(stock: Stock) -> bool:
            return cost(stock, bound) < math.inf

        yield ordered(own) + ordered(s for s in others if affordable(s))
        yield ordered(s for s in speculative if affordable(s))
        yield ordered(s for s in others if not affordable(s))
        yield ordered(s for s in speculative if not affordable(s))

    def drains_for(self, row: Row) -> list[Stock]:
        """Draining machines stamped for this Need."""
        return [
            stock
            for stock in self.stocks(MachineState.DRAINING)
            if (stamp := stock.cell.key.preempted_for) is not None
            and stamp.cluster == row.demand.need.cluster_id
            and (stamp.need_fingerprint, stamp.group) in row.demand.identities
        ]

    @property
    def unstamped_drains(self) -> list[Stock]:
        """Draining machines stamped for nobody who is still there."""
        return self._unstamped_drains

    def _of(self, cells: Iterable[Cell]) -> list[Stock]:
        found = []
        for cell in cells:
            stock = self._stocks.get(cell)
            if stock is None:
                stock = self._stocks[cell] = Stock(cell, cell.ids)
            found.append(stock)
        return found

    def _is_ownerless(self, stock: Stock) -> bool:
        binding = stock.cell.binding
        if not binding.fingerprint:
            return not stock.cell.key.seen_start
        return self._nobody(binding.target_cluster, binding.identity)

    def _is_unstamped(self, stock: Stock) -> bool:
        stamp = stock.cell.key.preempted_for
        return stamp is None or self._nobody(stamp.cluster, (stamp.need_fingerprint, stamp.group))

    def _nobody(self, cluster: str, identity: tuple[str, str]) -> bool:
        """Whether a cluster that has reported has no Need of this identity."""
        return cluster in self.reported and identity not in self._identities.get(cluster, ())


def keep_order(stock: Stock) -> tuple[float, float]:
    """Bound machines: the cheapest first, then the one worth most to its tenant."""
    cell = stock.cell
    return (cell.machine_class.offer.price_per_hour, -cell.binding.reclamation_penalty)


def cost(stock: Stock, interruption_bound: float) -> float:
    """Effective cost per hour for a Need with this interruption penalty."""
    offer = stock.cell.machine_class.offer
    return effective_cost(offer.price_per_hour, offer.interruption_probability, interruption_bound)


def head_key(stock: Stock, interruption_bound: float) -> tuple[float, float]:
    """Cost for comparing; where both are infinite, the price decides."""
    value = cost(stock, interruption_bound)
    return (value, stock.cell.machine_class.offer.price_per_hour if value == math.inf else 0.0)


def candidate_key(stock: Stock, interruption_bound: float) -> tuple[Any, ...]:
    """Order of candidates: cost, then the value to the last tenant (zero for Speculative ones)."""
    return (*head_key(stock, interruption_bound), stock.cell.key.last_reclamation_value)
