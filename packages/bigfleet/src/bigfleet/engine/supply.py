"""The fleet as the phases see it: its stocks, and who owns what (engine.md §10.1, §10.2)."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from bigfleet.engine.cells import Call, Cell, Pool
from bigfleet.engine.inventory import Identity, Inventory
from bigfleet.engine.matching import CostKey, Fit, Pools, Suited
from bigfleet.engine.states import CONFIGURED, CONFIGURING, CREATING, DRAINING, IDLE, SPECULATIVE
from bigfleet.engine.stock import Row, Stock, in_order
from bigfleet_base.model import MachineState

Place = tuple[str, str]
"""A label and its value: all machines that have it."""
Shelf = list[tuple[float, float, str]]
"""Places by what their first machine costs, then by value. What has been sold since they were put in order
may make one dearer, and never cheaper: who comes to it looks."""
PASSES: Final = (
    (IDLE, True),
    (SPECULATIVE, True),
    (IDLE, False),
    (SPECULATIVE, False),
)
"""In which order machines are acquired: of which state, and whether they cost something finite."""


class Supply:
    """Stocks of the inventory and the questions the phases ask of them."""

    def __init__(self, inventory: Inventory, reported: frozenset[str] = frozenset()) -> None:
        self.inventory = inventory
        self.reported = reported
        """Clusters whose demand is known."""
        self.ownerless: dict[Cell, Stock] = {}
        """Creating machines that were bought for nobody who is still there."""
        self.unstamped_drains: dict[Cell, Stock] = {}
        """Draining machines stamped for nobody who is still there."""
        self._stocks: dict[Cell, Stock] = {}
        self._identities: dict[str, Counter[Identity]] = {}
        self._barren: dict[Fit, bool] = {}
        self._drains: dict[Fit, list[Stock]] = {}
        self._free_values: dict[tuple[Pools, str], set[str]] = {}
        self._further_values: dict[tuple[str, Pools, str], set[str]] = {}
        self.offers: dict[tuple[Suited, bool, Place | None], Offer] = {}
        """What Needs that ask for the same may buy, everywhere or in one place, while they do."""
        self.shelves: dict[tuple[Suited, bool, str], Shelf] = {}
        """In which places they may buy it, while they do."""

    def begin(self) -> None:
        """A cycle looks at what there is now."""
        self._barren.clear()
        self._drains.clear()
        self._free_values.clear()
        self._further_values.clear()

    def stock(self, cell: Cell) -> Stock:
        """A cell with its claims."""
        found = self._stocks.get(cell)
        if found is None:
            found = self._stocks[cell] = Stock(cell)
        return found

    def stocks(self) -> Iterable[Stock]:
        """All that somebody has looked at."""
        return self._stocks.values()

    def parts(self) -> Iterable[dict[Any, Any]]:
        """All that stocks, the names of Needs and what is for sale are kept in."""
        return (
            self.ownerless,
            self.unstamped_drains,
            self._stocks,
            self._identities,
            self.offers,
            self.shelves,
        )

    def forget(self, cell: Cell) -> None:
        """A cell is gone, and with it all claims on it."""
        self._stocks.pop(cell, None)
        self.ownerless.pop(cell, None)
        self.unstamped_drains.pop(cell, None)

    # Who owns what

    def identities(self, cluster: str) -> Counter[Identity]:
        """The names under which machines are bought for the Needs of a cluster."""
        return self._identities.get(cluster) or Counter()

    def enter(self, cluster: str, identity: Identity) -> bool:
        """A Need has this name; True if none had it before."""
        known = self._identities.get(cluster)
        if known is None:
            known = self._identities[cluster] = Counter()
        known[identity] = before = known.get(identity, 0) + 1
        return before == 1

    def leave(self, cluster: str, identity: Identity) -> bool:
        """A Need with this name is gone; True if it was the last one."""
        known = self._identities[cluster]
        known[identity] -= 1
        if known[identity]:
            return False
        del known[identity]
        if not known:
            del self._identities[cluster]
        return True

    def settle(self, cell: Cell) -> None:
        """See whether machines in creation or drain belong to somebody."""
        if cell.state is CREATING:
            _put(self.ownerless, cell, self.stock(cell), self._is_ownerless(cell))
        elif cell.state is DRAINING:
            _put(self.unstamped_drains, cell, self.stock(cell), self._is_unstamped(cell))

    def owns(self, row: Row, cell: Cell) -> bool:
        """Whether the machines were bought for this Need."""
        binding = cell.binding
        unbound = cell.state in (CREATING, IDLE)
        cluster = binding.target_cluster if unbound else binding.cluster
        return cluster == row.demand.need.cluster_id and binding.identity in row.demand.identities

    def own_cells(self, row: Row, state: MachineState) -> Iterator[Cell]:
        """The cells of a state that were bought for a Need and suit it."""
        owned, identities = self.inventory.owned(row.demand.need.cluster_id, state), row.demand.identities
        # A folded Need has a name for each gang in it.
        for identity in owned.keys() & identities if len(owned) < len(identities) else identities:
            cells = owned.get(identity)
            if cells is not None:
                for cell in cells.values():
                    if row.fit.suits(cell.machine_class):
                        yield cell

    def drains_for(self, row: Row) -> list[Stock]:
        """Draining machines stamped for this Need."""
        cluster = row.demand.need.cluster_id
        return [
            self.stock(cell)
            for identity in row.demand.identities
            for cell in self.inventory.stamped(cluster, identity)
            if cell.state is DRAINING
        ]

    def drains_for_nobody(self, fit: Fit) -> list[Stock]:
        """Draining machines stamped for nobody who is still there, as far as they suit."""
        known = self._drains.get(fit)
        if known is None:
            drains, suited = self.unstamped_drains, fit.pools(DRAINING)
            if len(drains) <= len(suited):
                known = [stock for cell, stock in drains.items() if fit.suits(cell.machine_class)]
            else:
                known = [drains[cell] for pool in suited for cell in pool.cells.values() if cell in drains]
            self._drains[fit] = known
        return known

    # What can be had

    def barren(self, fit: Fit) -> bool:
        """Whether nothing suits that could be had now, be taken from somebody or be waited for."""
        known = self._barren.get(fit)
        if known is None:
            known = self._barren[fit] = all(next(iter(fit.pools(state)), None) is None for state in _HELPFUL)
        return known

    def free_values(self, fit: Fit, label: str) -> set[str]:
        """The values a label has where Idle or Speculative machines suit."""
        idle, speculative = (fit.pools(state) for state in (IDLE, SPECULATIVE))
        key = (idle.pools, label)
        known = self._free_values.get(key)
        if known is None:
            known = self._free_values[key] = {
                value
                for suited in (idle, speculative)
                for value, pools in suited.by_value(label).items()
                if any(pool.cells for pool in pools)
            }
        return known

    def further_values(self, cluster: str, fit: Fit, label: str) -> set[str]:
        """Those that it has besides where a cluster's machines suit."""
        key = (cluster, fit.pools(IDLE).pools, label)
        known = self._further_values.get(key)
        if known is None:
            free = self.free_values(fit, label)
            known = self._further_values[key] = {
                value
                for state in (CONFIGURED, CONFIGURING)
                for machine_class, _ in self.inventory.cluster_classes(cluster, state, fit.instance_types)
                if fit.suits(machine_class)
                and (value := machine_class.lookup(label)) is not None
                and value not in free
            }
        return known

    def own_idle(self, row: Row, place: Place | None) -> list[Stock]:
        """The Need's own Idle machines that it may take, of a place those that are there."""
        if row.parked:
            return []
        return [
            self.stock(cell)
            for cell in self.own_cells(row, IDLE)
            if not cell.is_held_off(Call.CONFIGURE) and (place is None or _lies_in(cell, place))
        ]

    def passes(self, row: Row, place: Place | None) -> Iterator[Iterator[list[Stock]]]:
        """The four passes of acquisition (engine.md §10.4), each as groups in candidate order; of a place
        what is there."""
        own = set(self.own_cells(row, IDLE))
        for number, (state, affordable) in enumerate(PASSES):
            others = self.others(row.fit, state, affordable, place, own)
            yield others if number else chain(first_of(row, self.own_idle(row, place)), others)

    def others(
        self, fit: Fit, state: MachineState, affordable: bool, place: Place | None, own: Collection[Cell]
    ) -> Iterator[list[Stock]]:
        """Machines of a state that are not the Need's own."""
        for group in self._offer(fit, state, affordable, place):
            others = [stock for stock in group if stock.cell not in own] if own else group
            if others:
                yield others

    def shelf(self, fit: Fit, state: MachineState, affordable: bool, label: str) -> "Shelf":
        """The places where machines of a state may be had, the one with the best first machine first."""
        pools = fit.pools(state)
        shelf = self.shelves.get((pools, affordable, label))
        if shelf is None:
            if len(self.shelves) >= _MOST_SHELVES:
                del self.shelves[next(iter(self.shelves))]
            shelf = self.shelves[pools, affordable, label] = []
            for value, there in pools.by_value(label).items():
                costs = [pools.cost_key(pool.machine_class) for pool in there if self.has_left(pool)]
                costs = [cost for cost in costs if (cost[0] < math.inf) is affordable]
                if costs:
                    shelf.append((*min(costs), value))
            shelf.sort()
        return shelf

    def has_left(self, pool: Pool) -> bool:
        """Whether there is something in a pool that nobody has bought."""
        stocks = self._stocks
        return any(cell not in stocks or stocks[cell].left for cell in pool.cells.values())

    def first_cost(self, fit: Fit, state: MachineState, affordable: bool, place: Place) -> CostKey | None:
        """What the first machine that is left in a place costs, whoever it was bought for. What is sold out
        counts here as little as on a shelf, or a place would seem cheaper than it was."""
        for group in self._offer(fit, state, affordable, place):
            if any(stock.left for stock in group):
                return fit.cost_key(group[0].cell.machine_class)
        return None

    def _offer(self, fit: Fit, state: MachineState, affordable: bool, place: Place | None) -> "Offer":
        pools = fit.pools(state)
        offer = self.offers.get((pools, affordable, place))
        if offer is None:
            priced = pools.priced() if place is None else _priced_in(pools, place)
            groups = self._tied(priced, state, affordable)
            if len(self.offers) >= _MOST_OFFERS:
                del self.offers[next(iter(self.offers))]
            offer = self.offers[pools, affordable, place] = Offer(groups)
        return offer

    def _tied(
        self, priced: Iterable[tuple[CostKey, list[Pool]]], state: MachineState, affordable: bool
    ) -> Iterator[list[Stock]]:
        """Machines of a state that may be had, in groups: cost, then the value to the last tenant (zero for
        Speculative ones)."""
        idle = state is IDLE
        call = Call.CONFIGURE if idle else Call.CREATE
        for (cost, _), pools in priced:
            if (cost < math.inf) is not affordable:
                continue
            found = [
                self.stock(cell)
                for pool in pools
                for cell in pool.cells.values()
                if not cell.is_held_off(call)
            ]
            if idle and len(found) > 1:
                yield from in_order(found, _last_value)
            elif found:
                yield found

    def _is_ownerless(self, cell: Cell) -> bool:
        binding = cell.binding
        if not binding.fingerprint:
            return not cell.key.seen_start
        return self._nobody(binding.target_cluster, binding.identity)

    def _is_unstamped(self, cell: Cell) -> bool:
        stamp = cell.key.preempted_for
        return stamp is None or self._nobody(stamp.cluster, (stamp.need_fingerprint, stamp.group))

    def _nobody(self, cluster: str, identity: Identity) -> bool:
        """Whether a cluster that has reported has no Need of this identity."""
        return cluster in self.reported and identity not in self._identities.get(cluster, ())


class Offer:
    """What Needs with one Profile and unit may buy in one pass, in groups of candidates: put together once a
    cycle, as far as somebody comes, and without what is sold out. One Need looks at a time: of two at once,
    each would miss what is put together for the other."""

    __slots__ = ("_groups", "_more")

    def __init__(self, groups: Iterator[list[Stock]]) -> None:
        self._groups: list[list[Stock]] = []
        self._more = groups

    def __iter__(self) -> Iterator[list[Stock]]:
        self._groups = [group for group in self._groups if group]
        for group in self._groups:
            group[:] = [stock for stock in group if stock.left]
            yield group
        for group in self._more:
            self._groups.append(group)
            yield group


_MOST_SHELVES: Final = 64
"""So many are kept while Needs buy: each may name as many places as there are machines. The oldest makes
room, and is put together again if it is needed."""
_MOST_OFFERS: Final = 20_000
"""The same of offers: there may be one for each kind of Need in each place."""
keep_order: Final = attrgetter("keep")
"""The key by which bound machines are kept."""
_HELPFUL: Final = (
    IDLE,
    SPECULATIVE,
    CONFIGURED,
    DRAINING,
)


def first_of(row: Row, own: Collection[Stock]) -> Iterable[list[Stock]]:
    """A Need's own Idle machines in candidate order: cost, then the value to the last tenant."""
    return in_order(own, lambda s: (row.fit.cost_key(s.cell.machine_class), _last_value(s)))


def _priced_in(pools: Suited, place: Place) -> Iterable[tuple[CostKey, list[Pool]]]:
    """The pools of a place in groups of equal cost, the cheapest first."""
    label, value = place
    found: dict[CostKey, list[Pool]] = {}
    for pool in pools.by_value(label).get(value, ()):
        found.setdefault(pools.cost_key(pool.machine_class), []).append(pool)
    return sorted(found.items())


def _lies_in(cell: Cell, place: Place) -> bool:
    label, value = place
    return cell.machine_class.lookup(label) == value


def _last_value(stock: Stock) -> float:
    return stock.cell.key.last_reclamation_value


def _put(where: dict[Any, Any], key: object, value: object, present: bool) -> None:
    if present:
        where[key] = value
    else:
        where.pop(key, None)


def suitable(row: Row, stocks: Iterable[Stock]) -> list[Stock]:
    """Those that suit."""
    return [stock for stock in stocks if row.fit.suits(stock.cell.machine_class)]
