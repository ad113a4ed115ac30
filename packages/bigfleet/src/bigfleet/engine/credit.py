"""What each Need holds already, kept from cycle to cycle (engine.md §10.2).

Needs are credited in the order of their ranks, each with what those before it left. What a Need comes to hold
depends on few cells, so that a change need only be followed where it leads: a Need is looked at again when it
is new, when a cell it looked into has changed, or when an earlier Need has left it more or less. Whoever is
looked at again is looked at in its turn, and only later ones can be touched by what it does then; so one walk
over a queue ordered by rank is enough, and a walk over all Needs comes to the same claims.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator
from typing import Any, Final, TypeVar

from bigfleet.engine.cells import Cell, Cells
from bigfleet.engine.domains import Gangs, same_key
from bigfleet.engine.inventory import Identity
from bigfleet.engine.pace import pieces
from bigfleet.engine.stock import Claim, Groups, Menu, Rank, Reach, Row, Stock, choose
from bigfleet.engine.supply import Supply
from bigfleet.engine.victims import VictimOrder
from bigfleet_base.model import EMPTY, MachineState, ResourceVector

BOUND: Final = (MachineState.CONFIGURED, MachineState.CONFIGURING)
_ANY: Final = "*"
"""Stands for every instance type."""
_USUAL: Final = {state: place for place, state in enumerate(BOUND)}
"""When a Need comes to what is its own or nobody's, …"""
_FOREIGN: Final = {state: place for place, state in enumerate(BOUND, len(BOUND))}
"""… and when to what was bought for others."""


class Credit:
    """The claims of all Needs on what they hold, and the queue of those to look at again."""

    def __init__(self, supply: Supply) -> None:
        self.supply = supply
        self.short: dict[Row, None] = {}
        """Needs that lack something."""
        self.loose: dict[Stock, None] = {}
        """Configured machines that nobody claims are in these."""
        self.looked_at: list[Row] = []
        """Whom the last walk came to."""
        self._rows: defaultdict[str, dict[Row, None]] = defaultdict(dict)
        self._by_type: defaultdict[tuple[str, str], dict[Row, None]] = defaultdict(dict)
        """By cluster and the instance types that can suit."""
        self._named: defaultdict[tuple[str, Identity], dict[Row, None]] = defaultdict(dict)
        self._wide: defaultdict[tuple[str, str], dict[Row, None]] = defaultdict(dict)
        """By cluster and instance type, those who looked at all it has."""
        self._far: dict[Row, None] = {}
        """Those who looked at machines that are nobody's."""
        self._free: defaultdict[str, dict[Row, None]] = defaultdict(dict)
        """By instance type, gangs that looked at what everybody may have."""
        self._everywhere: dict[Row, None] = {}
        self._queue: list[tuple[Rank, int, Row]] = []
        self._numbers = itertools.count()
        self._queued: set[Row] = set()
        self._unsettled: dict[Stock, None] = {}
        self._nobodys: dict[tuple[str, MachineState], list[Identity]] = {}
        self._claimed: dict[Stock, Claim] = {}
        """What the Need whose turn it is held before, and has not claimed again yet."""
        self._moved: list[Stock] = []
        """Where its claims do not end as they did."""
        self._gangs = Gangs(supply)
        self._fresh = True
        """Whether the first walk is still to be finished: everybody is in the queue."""

    def parts(self) -> "Iterable[dict[Any, Any] | list[Row]]":
        """All that rows are kept in."""
        return (
            self.short,
            self.looked_at,
            self._rows,
            self._by_type,
            self._named,
            self._wide,
            self._far,
            self._free,
            self._everywhere,
        )

    # What changed

    def exchange(self, gone: Iterable[Row], come: Collection[Row]) -> Generator[int, None, None]:
        """Needs go, others come."""
        renamed: dict[tuple[str, Identity], None] = {}
        # New names first: one that only passes from Need to Need was never nobody's.
        for row in come:
            cluster = row.demand.need.cluster_id
            self._rows[cluster][row] = None
            for name in row.fit.instance_types or (_ANY,):
                self._by_type[cluster, name][row] = None
            for identity in row.demand.identities:
                self._named[cluster, identity][row] = None
                if self.supply.enter(cluster, identity):
                    renamed[cluster, identity] = None
            self._look_at(row)
            yield 1
        heirs = {row.demand.place: row for row in come}
        for row in gone:
            heir = heirs.get(row.demand.place)
            if heir is not None and heir.rank == row.rank:
                self._unfile(row, row.reach)
                heir.inherit(row)
            else:
                self._withdraw(row)
                for claim in row.held:
                    self._changed(claim.stock, row.rank)
                for stock in row.promises:
                    self._offered(stock.cell, row.rank)
            cluster = row.demand.need.cluster_id
            _discard(self._rows, cluster, row)
            for name in row.fit.instance_types or (_ANY,):
                _discard(self._by_type, (cluster, name), row)
            for identity in row.demand.identities:
                _discard(self._named, (cluster, identity), row)
                if self.supply.leave(cluster, identity):
                    renamed[cluster, identity] = None
            self.short.pop(row, None)
            self._queued.discard(row)
            row.let_go()
            yield 1
        for cluster, identity in renamed:
            self._renamed(cluster, identity)

    def hear(self, reported: frozenset[str]) -> Generator[int, None, None]:
        """Clusters have told their demand: what is meant for those that had not may be nobody's now."""
        if reported == self.supply.reported:
            return
        self.supply.reported = reported
        ownerless = self.supply.ownerless
        for state in () if self._fresh else (MachineState.CREATING, MachineState.DRAINING):
            for pool in self.supply.inventory.pools(state):
                yield 1
                for cell in pool.cells.values():
                    was_ownerless = cell in ownerless
                    self.supply.settle(cell)
                    if was_ownerless is not (cell in ownerless):
                        self._changed(self.supply.stock(cell), None)

    def touch(self, cell: Cell) -> None:
        """A cell got or lost machines."""
        stock = self.supply.stock(cell)
        self.supply.settle(cell)
        self._changed(stock, None)
        if self._fresh:
            return
        cluster, identity = cell.binding.cluster, cell.binding.identity
        if cell.state in BOUND:
            self._nobodys.pop((cluster, cell.state), None)
            self._list(stock)
            visited = (_USUAL[cell.state], stock.keep)
            owners = self._named.get((cluster, identity))
            for row in self._suited(cell) if owners is None else owners:
                if (row.stopped is None or row.stopped >= visited) and row.fit.suits(cell.machine_class):
                    self._look_at(row)
        elif cell.state in (MachineState.CREATING, MachineState.IDLE):
            for row in self._named.get((cell.binding.target_cluster, identity), ()):
                if cell.state is MachineState.CREATING or row.reach >= Reach.CLUSTER:
                    self._look_at(row)
        if cell.state in (MachineState.IDLE, MachineState.SPECULATIVE):
            self._offered(cell, None)
        if not cell.ids:
            self.supply.forget(cell)
            self._unsettled.pop(stock, None)
            self.loose.pop(stock, None)

    def _list(self, stock: Stock) -> None:
        """Put bound machines that are new on the menus of their cluster; take those that are gone off."""
        cell = stock.cell
        identity, state = cell.binding.identity, cell.state
        if not cell.ids:
            for row in self._suited(cell):
                for menus in (row.usual, row.foreign):
                    if state in menus:
                        menus[state].discard(stock)
        elif not stock.is_listed:
            stock.is_listed = True
            is_somebodys = identity in self.supply.identities(cell.binding.cluster)
            for row in self._suited(cell):
                is_foreign = is_somebodys and identity not in row.demand.identities
                menu = (row.foreign if is_foreign else row.usual).get(state)
                if menu is not None and row.fit.suits(cell.machine_class):
                    menu.add(stock)

    def _suited(self, cell: Cell) -> Iterator[Row]:
        """The Needs of a cluster that a machine it has may suit."""
        for name in (cell.machine_class.offer.instance_type, _ANY):
            yield from self._by_type.get((cell.binding.cluster, name), ())

    def walk(self, order: VictimOrder, now: int) -> Generator[int, None, None]:
        """Look again at whom it may concern."""
        self.looked_at.clear()
        for row in self._everywhere:
            self._look_at(row)
        self._gangs.begin(order, now)
        while self._queue:
            _, _, row = heapq.heappop(self._queue)
            if row in self._queued:
                self._queued.discard(row)
                self._credit(row)
                self.looked_at.append(row)
                yield 1 + (len(row.held) + len(row.visited)) // _A_ROW
        for piece in pieces(self._unsettled):
            yield 1
            for stock in piece:
                if stock.left and stock.cell.ids:
                    self.loose[stock] = None
                else:
                    self.loose.pop(stock, None)
        self._unsettled.clear()
        self._fresh = False

    def _renamed(self, cluster: str, identity: Identity) -> None:
        """Machines of this name belong to somebody now, or to nobody any more."""
        if self._fresh:
            return
        inventory = self.supply.inventory
        for state in BOUND:
            cells = inventory.owned(cluster, state).get(identity)
            if cells:
                self._nobodys.pop((cluster, state), None)
                classes = {cell.machine_class for cell in cells.values()}
                for row in self._rows.get(cluster, ()):
                    if any(map(row.fit.suits, classes)):
                        row.usual.pop(state, None)
                        row.foreign.pop(state, None)
                        self._look_at(row)
        affected = [
            *inventory.owned(cluster, MachineState.CREATING).get(identity, {}).values(),
            *inventory.stamped(cluster, identity),
        ]
        for cell in affected:
            self.supply.settle(cell)
            for row in self._far:
                self._look_at(row)

    def _changed(self, stock: Stock, after: Rank | None) -> None:
        """Those whose turn comes later find something else in a stock than before."""
        cell = stock.cell
        if cell.state is MachineState.CONFIGURED:
            self._unsettled[stock] = None
        if self._fresh:
            # Everybody's turn is still to come.
            return
        queued = self._queued
        for claim in stock.claims:
            row = claim.row
            if row not in queued and (after is None or row.rank > after):
                self._look_at(row)
        for row in stock.readers:
            if row not in queued and (after is None or row.rank > after):
                self._look_at(row)
        if cell in self.supply.ownerless:
            for row in self._far:
                if (
                    row not in queued
                    and (after is None or row.rank > after)
                    and row.fit.suits(cell.machine_class)
                ):
                    self._look_at(row)
        elif cell.state in BOUND:
            visited = (_FOREIGN[cell.state], stock.keep)
            for name in (cell.machine_class.offer.instance_type, _ANY):
                for row in self._wide.get((cell.binding.cluster, name), ()):
                    # One that had enough before it came there does not mind.
                    if (
                        row not in queued
                        and (row.stopped is None or row.stopped >= visited)
                        and (after is None or row.rank > after)
                        and row.fit.suits(cell.machine_class)
                    ):
                        self._look_at(row)

    def _offered(self, cell: Cell, after: Rank | None) -> None:
        """More or less is left of what everybody may have."""
        for name in (cell.machine_class.offer.instance_type, _ANY):
            for row in self._free.get(name, ()):
                if (
                    row not in self._queued
                    and (after is None or row.rank > after)
                    and row.fit.suits(cell.machine_class)
                    and (not row.rivals or cell.machine_class.lookup(same_key(row)) in row.rivals)
                ):
                    self._look_at(row)

    def _look_at(self, row: Row) -> None:
        if row not in self._queued:
            self._queued.add(row)
            heapq.heappush(self._queue, (row.rank, next(self._numbers), row))

    # A Need's turn

    def _credit(self, row: Row) -> None:
        promised, visited, reach = row.promises, row.visited, row.reach
        self._claimed = {claim.stock: claim for claim in row.held}
        row.held, row.visited, row.stopped, row.promises = [], [], None, {}
        if row.demand.need.profile.same is None:
            row.lacking, row.reach = self._plain(row)
        else:
            row.lacking, row.reach = self._gangs.place(row, self)
            for stock in promised.keys() | row.promises.keys():
                if promised.get(stock) != row.promises.get(stock):
                    self._offered(stock.cell, row.rank)
        for stock, claim in self._claimed.items():
            stock.claims.remove(claim)
            self._moved.append(stock)
        if visited != row.visited:
            for stock in visited:
                stock.readers.discard(row)
            for stock in row.visited:
                stock.readers.add(row)
        if reach is not row.reach:
            self._unfile(row, reach)
            self._file(row)
        row.remaining, row.spread_stopped = row.lacking, False
        if row.lacking.is_zero():
            self.short.pop(row, None)
        else:
            self.short[row] = None
        for stock in self._moved:
            self._changed(stock, row.rank)
        self._moved.clear()

    def _withdraw(self, row: Row) -> None:
        for claim in row.held:
            claim.stock.claims.remove(claim)
        for stock in row.visited:
            stock.readers.discard(row)
        self._unfile(row, row.reach)

    def _unfile(self, row: Row, reach: Reach) -> None:
        if reach >= Reach.OWNERLESS:
            self._far.pop(row, None)
        if reach >= Reach.CLUSTER:
            for name in row.fit.instance_types or (_ANY,):
                _discard(self._wide, (row.demand.need.cluster_id, name), row)
        if reach is Reach.FREE:
            for name in row.fit.instance_types or (_ANY,):
                _discard(self._free, name, row)
        elif reach is Reach.FLEET:
            self._everywhere.pop(row, None)

    def _file(self, row: Row) -> None:
        reach = row.reach
        if reach >= Reach.OWNERLESS:
            self._far[row] = None
        if reach >= Reach.CLUSTER:
            for name in row.fit.instance_types or (_ANY,):
                self._wide[row.demand.need.cluster_id, name][row] = None
        if reach is Reach.FREE:
            for name in row.fit.instance_types or (_ANY,):
                self._free[name][row] = None
        elif reach is Reach.FLEET:
            self._everywhere[row] = None

    def _plain(self, row: Row) -> tuple[ResourceVector, Reach]:
        """Claim what already counts for a plain Need; what was bought for others only if it is still
        wanted."""
        lacking = row.demand.need.aggregate
        for state in BOUND:
            for group in self.usual(row, state):
                lacking = self.take(row, group, lacking)
                if lacking.is_zero():
                    row.stopped = (_USUAL[state], group[0].keep)
                    return lacking, Reach.OWN
        own = self.own_creating(row)
        if own:
            lacking = self.take(row, own, lacking)
        if lacking.is_zero():
            return lacking, Reach.OWN
        ownerless = self.ownerless(row)
        if ownerless:
            lacking = self.take(row, ownerless, lacking)
        if lacking.is_zero():
            return lacking, Reach.OWNERLESS
        aside = EMPTY
        for stock in self.supply.own_idle(row, None):
            aside = aside + stock.cell.alloc * len(stock.cell.ids)
        for state in BOUND:
            for group in self.foreign(row, state):
                lacking = self.take(row, group, lacking, aside)
                if lacking.is_zero():
                    row.stopped = (_FOREIGN[state], group[0].keep)
                    return lacking, Reach.CLUSTER
        return lacking, Reach.CLUSTER

    # What a Need may claim, for gangs as well

    def usual(self, row: Row, state: MachineState) -> Groups:
        """What its cluster has that is its own or nobody's, as far as it suits."""
        menu = row.usual.get(state)
        if menu is None:
            menu = row.usual[state] = Menu(self._usual(row, state))
        return menu.groups

    def foreign(self, row: Row, state: MachineState) -> Iterator[list[Stock]]:
        """What is left of what its cluster has that was bought for another of its Needs, as far as it
        suits."""
        menu = row.foreign.get(state)
        if menu is None:
            menu = row.foreign[state] = Menu(self._foreign(row, state))
        rank = row.rank
        for group in menu.groups:
            found = [stock for stock in group if stock.before(rank) < len(stock.cell.ids)]
            if found:
                yield found

    def _usual(self, row: Row, state: MachineState) -> Iterator[Stock]:
        cluster = row.demand.need.cluster_id
        owned = self.supply.inventory.owned(cluster, state)
        suits = row.fit.suits
        for identity in (*row.demand.identities, *self._of_nobody(cluster, state, owned.keys())):
            cells = owned.get(identity)
            if cells:
                yield from (self.supply.stock(cell) for cell in cells.values() if suits(cell.machine_class))

    def _foreign(self, row: Row, state: MachineState) -> Iterator[Stock]:
        own, known = row.demand.identities, self.supply.identities(row.demand.need.cluster_id)
        for cells in self._suiting(row, state):
            for cell in cells.values():
                identity = cell.binding.identity
                if identity in known and identity not in own:
                    yield self.supply.stock(cell)

    def _suiting(self, row: Row, state: MachineState) -> Iterator[Cells]:
        """What its cluster has that suits, by class."""
        classes = self.supply.inventory.cluster_classes(row.demand.need.cluster_id, state)
        suited = row.fit.pools(state)
        if len(classes) <= len(suited):
            suits = row.fit.suits
            yield from (cells for machine_class, cells in classes.items() if suits(machine_class))
        else:
            for pool in suited:
                cells = classes.get(pool.machine_class)
                if cells:
                    yield cells

    def own_creating(self, row: Row) -> list[Stock]:
        """Machines in creation that were bought for it."""
        return [self.supply.stock(cell) for cell in self.supply.own_cells(row, MachineState.CREATING)]

    def ownerless(self, row: Row) -> list[Stock]:
        """Machines in creation that are nobody's, as far as they suit."""
        suits = row.fit.suits
        return [stock for cell, stock in self.supply.ownerless.items() if suits(cell.machine_class)]

    def take(
        self, row: Row, group: list[Stock], lacking: ResourceVector, aside: ResourceVector = EMPTY
    ) -> ResourceVector:
        """Claim machines of one group, whose order ids decide, as far as they add to what is lacking beyond
        what is set aside; returns what is lacking then."""
        wanted = lacking - aside if aside else lacking
        if wanted.is_zero():
            return lacking
        rank = row.rank
        if len(group) > 1:
            # Ids decide: what one of them holds is felt in all of them.
            row.visited += group
        elif group[0].before(rank) == len(group[0].cell.ids):
            row.visited.append(group[0])
            return lacking
        alloc, total = EMPTY, 0
        for stock, start, count in choose(group, wanted, [stock.before(rank) for stock in group]):
            self._claim(row, stock, start, start + count)
            if stock.cell.alloc is not alloc:
                lacking = lacking.less(alloc, total)
                alloc, total = stock.cell.alloc, 0
            total += count
        return lacking.less(alloc, total)

    def _claim(self, row: Row, stock: Stock, start: int, end: int) -> None:
        claim = self._claimed.pop(stock, None)
        if claim is None:
            claim = Claim(stock, start, end, row)
            stock.add(claim)
            self._moved.append(stock)
        else:
            if claim.end != end:
                self._moved.append(stock)
            claim.start, claim.end = start, end
        row.held.append(claim)

    def _of_nobody(
        self, cluster: str, state: MachineState, present: Collection[Identity]
    ) -> Iterable[Identity]:
        known = self._nobodys.get((cluster, state))
        if known is None:
            named = self.supply.identities(cluster)
            known = self._nobodys[cluster, state] = [name for name in present if name not in named]
        return known


_A_ROW: Final = 4
"""Looking into so many stocks takes as long as a row."""
_Place = TypeVar("_Place")


def _discard(index: defaultdict[_Place, dict[Row, None]], place: _Place, row: Row) -> None:
    rows = index[place]
    rows.pop(row, None)
    if not rows:
        del index[place]
