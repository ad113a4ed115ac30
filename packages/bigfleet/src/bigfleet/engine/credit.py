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

from bigfleet.engine.cells import Cell
from bigfleet.engine.domains import Gangs, same_key
from bigfleet.engine.inventory import Identity
from bigfleet.engine.pace import pieces
from bigfleet.engine.states import CONFIGURED, CONFIGURING, CREATING, DRAINING, IDLE, SPECULATIVE
from bigfleet.engine.stock import Groups, Menu, Rank, Reach, Row, Stock
from bigfleet.engine.supply import Supply
from bigfleet.engine.turn import Turn
from bigfleet.engine.victims import VictimOrder
from bigfleet_base.model import EMPTY, MachineState, ResourceVector

BOUND: Final = (CONFIGURED, CONFIGURING)
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
        """Whom the last walk came to, those apart who hold as much of everything as before."""
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
        self._nobodys: dict[tuple[str, MachineState], dict[str, list[Cell]]] = {}
        self._turn = Turn()
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

    def exchange(self, gone: Collection[Row], come: Collection[Row]) -> Generator[int, None, None]:
        """Needs go, others come."""
        renamed: dict[tuple[str, Identity], None] = {}
        places = {row.demand.place: row for row in come}
        heirs: dict[Row, Row] = {}
        for row in gone:
            heir = places.get(row.demand.place)
            if heir is not None and heir.rank == row.rank:
                heirs[row] = heir
        legators = {heir: row for row, heir in heirs.items()}
        # New names first: one that only passes from Need to Need was never nobody's.
        for row in come:
            cluster = row.demand.need.cluster_id
            legator = legators.get(row)
            known = legator.demand.identities if legator is not None else ()
            self._rows[cluster][row] = None
            for name in row.fit.instance_types or (_ANY,):
                self._by_type[cluster, name][row] = None
            for identity in row.demand.identities:
                self._named[cluster, identity][row] = None
                if identity not in known and self.supply.enter(cluster, identity):
                    renamed[cluster, identity] = None
            self._look_at(row)
            yield 1
        for row in gone:
            heir = heirs.get(row)
            if heir is not None:
                self._unfile(row, row.reach)
                heir.inherit(row, menus=self._may_claim_the_same(heir, row))
            else:
                self._withdraw(row)
                for claim in row.held:
                    self._changed(claim.stock, row.rank)
                for stock in row.promises:
                    self._offered(stock.cell, row.rank)
            cluster = row.demand.need.cluster_id
            kept = heir.demand.identities if heir is not None else ()
            _discard(self._rows, cluster, row)
            for name in row.fit.instance_types or (_ANY,):
                _discard(self._by_type, (cluster, name), row)
            for identity in row.demand.identities:
                _discard(self._named, (cluster, identity), row)
                if identity not in kept and self.supply.leave(cluster, identity):
                    renamed[cluster, identity] = None
            self.short.pop(row, None)
            self._queued.discard(row)
            row.let_go()
            yield 1
        for cluster, identity in renamed:
            self._renamed(cluster, identity)

    def _may_claim_the_same(self, heir: Row, row: Row) -> bool:
        """Whether the menus of one are those of the other: a name that only one of them has makes a
        difference if bound machines have it too."""
        inventory, cluster = self.supply.inventory, row.demand.need.cluster_id
        return heir.fit is row.fit and not any(
            name in inventory.owned(cluster, state)
            for name in heir.demand.identities ^ row.demand.identities
            for state in BOUND
        )

    def hear(self, reported: frozenset[str]) -> Generator[int, None, None]:
        """Clusters have told their demand: what is meant for those that had not may be nobody's now."""
        if reported == self.supply.reported:
            return
        self.supply.reported = reported
        ownerless = self.supply.ownerless
        for state in () if self._fresh else (CREATING, DRAINING):
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
        if cell.ids:
            self.supply.settle(cell)
        # Who counted on what is gone hears of it, whoever it would belong to by now.
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
        elif cell.state in (CREATING, IDLE):
            for row in self._named.get((cell.binding.target_cluster, identity), ()):
                if cell.state is CREATING or row.reach >= Reach.CLUSTER:
                    self._look_at(row)
        if cell.state in (IDLE, SPECULATIVE):
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
                    tie = menus[state].tie(stock) if state in menus else None
                    # Whoever took of it takes it off in its turn, with what it has of it.
                    if tie is not None and tie.wanted is None:
                        menus[state].discard(stock)
        elif not stock.is_listed:
            stock.is_listed = True
            is_somebodys = identity in self.supply.identities(cell.binding.cluster)
            for row in self._suited(cell):
                is_foreign = is_somebodys and identity not in row.demand.identities
                menu = (row.foreign if is_foreign else row.usual).get(state)
                if menu is not None and row.fit.suits(cell.machine_class):
                    tie = menu.add(stock)
                    if tie is not None and tie.wanted is not None:
                        stock.readers.add(row)
                        self._look_at(row, stock)

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
                yield 1 + self._turn.work // _A_ROW
        self._gangs.end()
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
                        row.forget_menus()
                        self._look_at(row)
        affected = [
            *inventory.owned(cluster, CREATING).get(identity, {}).values(),
            *inventory.stamped(cluster, identity),
        ]
        for cell in affected:
            self.supply.settle(cell)
            for row in self._far:
                if row.fit.suits(cell.machine_class):
                    self._look_at(row)

    def _changed(self, stock: Stock, after: Rank | None) -> None:
        """Those whose turn comes later find something else in a stock than before."""
        cell = stock.cell
        if cell.state is CONFIGURED:
            self._unsettled[stock] = None
        if self._fresh:
            # Everybody's turn is still to come.
            return
        for claim in stock.claims:
            row = claim.row
            if after is None or row.rank > after:
                self._look_at(row, stock)
        for row in stock.readers:
            if after is None or row.rank > after:
                self._look_at(row, stock)
        if cell in self.supply.ownerless:
            for row in self._far:
                if (
                    row not in self._queued
                    and (after is None or row.rank > after)
                    and row.fit.suits(cell.machine_class)
                ):
                    self._look_at(row)
        elif cell.state is CREATING:
            # Gangs of a class that was folded once share a name, and look at all that is on its way to it.
            for row in self._named.get((cell.binding.target_cluster, cell.binding.identity), ()):
                if after is None or row.rank > after:
                    self._look_at(row)
        elif cell.state in BOUND:
            visited = (_FOREIGN[cell.state], stock.keep)
            for name in (cell.machine_class.offer.instance_type, _ANY):
                for row in self._wide.get((cell.binding.cluster, name), ()):
                    # One that had enough before it came there does not mind.
                    if (
                        row not in self._queued
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

    def _look_at(self, row: Row, stock: Stock | None = None) -> None:
        """A Need gets another turn, because of what it finds in a stock or for some other reason."""
        if stock is not None and row.stale is not None:
            row.stale[stock] = None
        if row not in self._queued:
            self._queued.add(row)
            heapq.heappush(self._queue, (row.rank, next(self._numbers), row))

    # A Need's turn

    def _credit(self, row: Row) -> None:
        promised, visited, lacking, reach = row.promises, row.visited, row.lacking, row.reach
        turn = self._turn
        turn.begin(row)
        row.promises, row.visited, row.stopped, row.is_new = {}, [], None, False
        if row.demand.need.profile.same is None:
            row.lacking, row.reach = self._plain(row)
        else:
            turn.put_up_all(row)
            row.lacking, row.reach = self._gangs.place(row, self)
        if promised or row.promises:
            for stock in {**promised, **row.promises}:
                if promised.get(stock) != row.promises.get(stock):
                    self._offered(stock.cell, row.rank)
        turn.give_up_rest()
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
        if turn.differs or row.lacking != lacking:
            self.looked_at.append(row)
        for stock in turn.moved:
            self._changed(stock, row.rank)

    def _withdraw(self, row: Row) -> None:
        for claim in row.held:
            claim.stock.claims.remove(claim)
        for stock in row.reads():
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
        walked, row.walked = row.walked, []
        if row.stale is None:
            self._turn.put_up_all(row)
            row.stale = {}
        else:
            # What is on its way is looked for anew each time.
            for stock in row.coming:
                self._turn.put_up(row, stock)
        row.coming = []
        found = self._walk(row)
        if walked != row.walked:
            still = set(row.walked)
            for tie in walked:
                if tie not in still:
                    self._turn.leave(row, tie)
        for stock in row.stale:
            if not stock.cell.ids:
                row.take_off(stock)
        row.stale.clear()
        return found

    def _walk(self, row: Row) -> tuple[ResourceVector, Reach]:
        lacking = row.demand.need.aggregate
        if lacking.is_zero():
            return lacking, Reach.OWN
        for state in BOUND:
            for tie in self._usual_menu(row, state).ties:
                lacking = self._turn.visit(row, tie, lacking)
                if lacking.is_zero():
                    row.stopped = (_USUAL[state], tie.keep)
                    return lacking, Reach.OWN
        own = self.own_creating(row)
        if own:
            row.coming += own
            lacking = self.take(row, own, lacking)
        if lacking.is_zero():
            return lacking, Reach.OWN
        ownerless = self.ownerless(row)
        if ownerless:
            row.coming += ownerless
            lacking = self.take(row, ownerless, lacking)
        if lacking.is_zero():
            return lacking, Reach.OWNERLESS
        aside = EMPTY
        for stock in self.supply.own_idle(row, None):
            aside = aside + stock.cell.alloc * len(stock.cell.ids)
        for state in BOUND:
            for tie in self._foreign_menu(row, state).ties:
                wanted = lacking - aside if aside else lacking
                if not wanted.is_zero():
                    rest = self._turn.visit(row, tie, wanted)
                    lacking = lacking - tie.taken if aside else rest
                if lacking.is_zero():
                    row.stopped = (_FOREIGN[state], tie.keep)
                    return lacking, Reach.CLUSTER
        return lacking, Reach.CLUSTER

    # What a Need may claim, for gangs as well

    def usual(self, row: Row, state: MachineState) -> Groups:
        """What its cluster has that is its own or nobody's, as far as it suits."""
        return self._usual_menu(row, state).groups

    def foreign(self, row: Row, state: MachineState) -> Iterator[list[Stock]]:
        """What is left of what its cluster has that was bought for another of its Needs, as far as it
        suits."""
        rank = row.rank
        for group in self._foreign_menu(row, state).groups:
            found = [stock for stock in group if stock.before(rank) < len(stock.cell.ids)]
            if found:
                yield found

    def _usual_menu(self, row: Row, state: MachineState) -> Menu:
        menu = row.usual.get(state)
        if menu is None:
            menu = row.usual[state] = Menu(self._usual(row, state))
        return menu

    def _foreign_menu(self, row: Row, state: MachineState) -> Menu:
        menu = row.foreign.get(state)
        if menu is None:
            menu = row.foreign[state] = Menu(self._foreign(row, state))
        return menu

    def _usual(self, row: Row, state: MachineState) -> Iterator[Stock]:
        cluster = row.demand.need.cluster_id
        owned = self.supply.inventory.owned(cluster, state)
        suits = row.fit.suits
        nobodys = self._of_nobody(cluster, state)
        own = [cells.values() for name in row.demand.identities if (cells := owned.get(name)) is not None]
        strays = [nobodys.get(name, ()) for name in row.fit.instance_types or nobodys]
        for some in (*own, *strays):
            for cell in some:
                if suits(cell.machine_class):
                    yield self.supply.stock(cell)

    def _foreign(self, row: Row, state: MachineState) -> Iterator[Stock]:
        cluster, fit, own = row.demand.need.cluster_id, row.fit, row.demand.identities
        known = self.supply.identities(cluster)
        for machine_class, cells in self.supply.inventory.cluster_classes(cluster, state, fit.instance_types):
            if fit.suits(machine_class):
                for cell in cells.values():
                    identity = cell.binding.identity
                    if identity in known and identity not in own:
                        yield self.supply.stock(cell)

    def own_creating(self, row: Row) -> list[Stock]:
        """Machines in creation that were bought for it."""
        return [self.supply.stock(cell) for cell in self.supply.own_cells(row, CREATING)]

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
        if len(group) > 1:
            # Ids decide: what one of them holds is felt in all of them.
            row.visited += group
        elif group[0].before(row.rank) == len(group[0].cell.ids):
            row.visited.append(group[0])
            return lacking
        taken, _ = self._turn.take(row, group, wanted)
        return lacking - taken

    def _of_nobody(self, cluster: str, state: MachineState) -> dict[str, list[Cell]]:
        """What a cluster has that was bought for no Need of it, by instance type."""
        known = self._nobodys.get((cluster, state))
        if known is None:
            known = self._nobodys[cluster, state] = {}
            named = self.supply.identities(cluster)
            for name, cells in self.supply.inventory.owned(cluster, state).items():
                if name not in named:
                    for cell in cells.values():
                        known.setdefault(cell.machine_class.offer.instance_type, []).append(cell)
        return known


_A_ROW: Final = 4
"""Looking into so many stocks takes as long as a row."""
_Place = TypeVar("_Place")


def _discard(index: defaultdict[_Place, dict[Row, None]], place: _Place, row: Row) -> None:
    rows = index[place]
    rows.pop(row, None)
    if not rows:
        del index[place]
