"""Which machines exist: the offerings' slots, hosts found on the substrate, prices and notices.

Large changes are worked off a bounded number of machines at a time, so that a new price for 50,000 of them
delays nobody's call.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bigfleet_base.model import CapacityType, HostRef, MachineState
from bigfleet_providerkit.backend import (
    Binding,
    DiscoveredHost,
    Host,
    HostStatus,
    Interruption,
    Offering,
    PriceUpdate,
)
from bigfleet_providerkit.effects import (
    HostLost,
    Interrupted,
    PriceRefreshed,
    Reconciled,
    RepairTried,
    Withheld,
)
from bigfleet_providerkit.errors import InsufficientCapacity, NotFound, finite_seconds
from bigfleet_providerkit.lasterror import last_error, reason
from bigfleet_providerkit.offerings import Offer, OfferingsError, check_offerings, offer_key, offering_shape
from bigfleet_providerkit.records import (
    NO_HOST,
    Kind,
    Shape,
    ShapeError,
    Slot,
    check_texts,
    is_host_ref,
    publish_quantities,
    refine,
    write_metadata,
    write_refinement,
)
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.state import State
from bigfleet_providerkit.work import NANOS, Job, Work

SLICE: Final = 500
"""Machines of a large change that one batch takes."""
BOOT_SLICE: Final = 10_000
MIN_WITHHELD_S: Final = 1.0
MAX_WITHHELD_S: Final = 86_400.0
_IMMINENT_RISK: Final = 0.99
_HINT_RISK: Final = 0.5


class DescribeError(Exception):
    """The substrate could not be described, and without that the provider must not serve."""


class Inventory:
    """Keeps the machines in step with offerings and substrate."""

    def __init__(self, settings: Settings, state: State, work: Work) -> None:
        self._settings = settings
        self._state = state
        self._work = work
        self._declared: dict[str, Offer] = {}
        self._offers: dict[str, Offer] = {}
        """As declared, but for prices that have changed since."""
        self._named: dict[tuple[str, str, CapacityType], dict[str, None]] = {}
        """Keys of the offers that a price of this type, zone and capacity type is for."""
        self._members: dict[str, dict[str, None]] = {}
        self._unavailable: dict[str, int] = {}
        """When the offering's slots come back, by offer."""
        self._backlog: deque[tuple[Callable[[str], None], str]] = deque()
        self._described = False
        self._watching = 0
        self.on_failed: Callable[[Slot, int], None] = lambda slot, now: None
        for slot in state.slots.committed.values():
            self._members.setdefault(slot.offer, {})[slot.id] = None
            if slot.offer not in self._offers:
                self._know(Offer(slot.offer, slot.shape, 0))
        self._guessed = set(self._offers)
        """Offers that have not been declared since the start. The store knows what each machine has become,
        not what the offering was, and what became of one says nothing of another."""

    @property
    def described(self) -> bool:
        """Whether the inventory is complete."""
        return self._described and not self._backlog

    def describe(self, now: int) -> None:
        """Ask the backend for its offerings, then for its hosts."""
        self._work.submit(self._job("offerings", self._got_offerings))

    def work_off(self) -> None:
        """Stage the next slice of large changes."""
        count = min(len(self._backlog), SLICE if self._described else BOOT_SLICE)
        for place in range(count):
            change, machine_id = self._backlog[place]
            change(machine_id)
        if count:
            self._state.later(partial(self._worked, count))

    @property
    def backlog(self) -> int:
        return len(self._backlog)

    def settle_free(self, slot: Slot) -> None:
        """A machine has no host any more: it is a slot of its offering again, or none."""
        if slot.retiring:
            self._remove(slot)
            return
        self._state.change(
            slot,
            state=MachineState.SPECULATIVE,
            shape=self._base(slot),
            withheld=slot.offer in self._unavailable,
            host=NO_HOST,
            cluster="",
            binding=b"",
            note=b"",
            last_error="",
            # The others ended with the slot's life; a repeated Delete is still answered (P-45).
            operations=("", "", "", slot.operations[Kind.DELETE.place]),
            grace=0,
            risk=0.0,
            refined=b"",
        )

    def withhold(self, slot: Slot, retry_after: object, now: int) -> None:
        """The substrate has no more of this offering: hide its free slots for a while."""
        given = finite_seconds(retry_after, InsufficientCapacity.retry_after)
        pause = min(max(given, MIN_WITHHELD_S), MAX_WITHHELD_S)
        until = now + round(pause * NANOS)
        offer = slot.offer
        self._state.report(Withheld(offer, pause))

        def hide() -> None:
            known = offer in self._unavailable
            self._unavailable[offer] = max(until, self._unavailable.get(offer, 0))
            if not known:
                self._queue(self._hide, self._members.get(offer, {}))
            self._work.at(until, partial(self._window_over, offer))

        self._state.later(hide)

    def noticed(self, notice: Any) -> None:
        """Take in a word of the backend's feeds."""
        match notice:
            case PriceUpdate():
                self._price(notice)
            case Interruption():
                self._interruption(notice)
            case _:
                self._state.report(
                    PriceRefreshed("error", f"the backend's feed yielded {type(notice).__name__}")
                )

    def refined_shape(self, slot: Slot, host: Host) -> dict[str, Any]:
        """What a host says of its size, as values of its slot; ShapeError when it says nonsense."""
        refined = write_refinement(host.allocatable, host.resources)
        return {"refined": refined, "shape": refine(self._base(slot), refined, slot.risk)}

    # ---- describing

    def _got_offerings(self, value: Any, error: BaseException | None, now: int) -> None:
        try:
            if error is not None:
                raise DescribeError(f"the backend's offerings() failed: {_text(error)}") from error
            offers = check_offerings(_listed("offerings", value))
        except (DescribeError, OfferingsError) as problem:
            self._describe_failed(problem, now)
            return
        head = self._state.listing.head
        if self._settings.capabilities.discover:
            job = self._job("discover", partial(self._got_hosts, offers, head))
            self._state.later(lambda: self._work.submit(job))
        else:
            self._got_hosts(offers, head, (), None, now)

    def _got_hosts(
        self, offers: dict[str, Offer], head: int, value: Any, error: BaseException | None, now: int
    ) -> None:
        try:
            if error is not None:
                raise DescribeError(f"the backend's discover() failed: {_text(error)}") from error
            hosts = [_checked(host) for host in _listed("discover", value)]
        except (DescribeError, ShapeError) as problem:
            self._describe_failed(problem, now)
            return
        self._state.report(Reconciled("ok"))
        self._state.later(partial(self._take_over, offers, hosts, head, now))

    def _describe_failed(self, problem: Exception, now: int) -> None:
        if not self._described:
            raise DescribeError(str(problem)) from problem
        self._state.report(Reconciled("error", str(problem)))
        self._state.later(partial(self._plan_next, now))

    def _take_over(
        self, offers: dict[str, Offer], hosts: Sequence[DiscoveredHost], head: int, now: int
    ) -> None:
        for key in [*offers, *(key for key in self._declared if key not in offers)]:
            self._plan(key, offers.get(key))
        if not self._described:
            # Slots of offerings that are gone were never declared in this process.
            for key in [key for key in self._members if key not in offers]:
                self._plan(key, None)
            # Windows are not kept over a restart: the substrate is asked anew.
            hidden = [slot.id for slot in self._state.slots.committed.values() if slot.withheld]
            self._queue(self._show, hidden)
        self._declared = offers
        known = self._state.slots.committed
        for found in hosts:
            # Whatever has changed since the substrate was asked knows better than its answer.
            slot = known.get(found.machine_id)
            if slot is None or (_can_adopt(slot, found) and slot.revision <= head):
                self._backlog.append((partial(self._adopt, found, now), found.machine_id))
        self._described = True
        self._watch()
        self._plan_next(now)

    def _plan_next(self, now: int) -> None:
        if interval := self._settings.reconcile_interval:
            self._work.at(now + interval, lambda _: self._state.later(partial(self.describe, 0)))

    def _plan(self, key: str, offer: Offer | None) -> None:
        """Queue what takes the offering's machines from what they are to what was declared."""
        declared = self._declared.get(key)
        known = self._offers.get(key)
        if offer is not None and declared is not None and known is not None and declared.shape is offer.shape:
            if declared.count == offer.count:
                return
            # Nothing new is said of the price, so what a feed has said of it holds.
            offer = replace(offer, shape=known.shape)
        was_guessed = key in self._guessed
        if offer is not None:
            self._guessed.discard(key)
        current = offer or replace(known or self._declared[key], count=0)
        self._know(current)
        members = self._members.setdefault(key, {})
        slots = sorted((self._state.slots.committed[member] for member in members), key=_index)
        if known is None or known.shape is not current.shape or was_guessed:
            self._queue(self._restamp, [slot.id for slot in slots if not self._is_stamped(slot)])
        staying = [slot for slot in slots if not slot.retiring]
        if len(staying) > current.count:
            excess = len(staying) - current.count
            free = [slot for slot in reversed(staying) if slot.state is MachineState.SPECULATIVE]
            hosted = [slot for slot in reversed(staying) if slot.state is not MachineState.SPECULATIVE]
            self._queue(self._retire, [slot.id for slot in (free + hosted)[:excess]])
        elif len(staying) < current.count:
            missing = current.count - len(staying)
            back = [slot.id for slot in slots if slot.retiring][:missing]
            self._queue(self._unretire, back)
            taken = set(members)
            fresh: list[str] = []
            index = 0
            while len(fresh) < missing - len(back):
                machine_id = current.machine_id(index)
                if machine_id not in taken:
                    fresh.append(machine_id)
                index += 1
            self._queue(self._add, fresh)

    # ---- one machine at a time, from the backlog

    def _add(self, machine_id: str) -> None:
        if self._state.slots.get(machine_id) is not None:
            return
        offer = self._offers[machine_id.rpartition("-")[0]]
        self._insert(
            Slot(
                id=machine_id,
                offer=offer.key,
                shape=offer.shape,
                state=MachineState.SPECULATIVE,
                withheld=offer.key in self._unavailable,
            )
        )

    def _restamp(self, machine_id: str) -> None:
        slot = self._state.slots.get(machine_id)
        if slot is not None:
            shape = refine(self._base(slot), slot.refined, slot.risk)
            if shape is not slot.shape:
                self._state.change(slot, shape=shape)

    def _revalue(self, update: PriceUpdate, machine_id: str) -> None:
        """As ``_restamp``, where nobody knows the offering that the price is for."""
        slot = self._state.slots.get(machine_id)
        if slot is not None:
            shape = refine(_repriced(slot.shape, update), slot.refined, slot.risk)
            if shape is not slot.shape:
                self._state.change(slot, shape=shape)

    def _retire(self, machine_id: str) -> None:
        slot = self._state.slots.get(machine_id)
        if slot is None:
            return
        if slot.state is MachineState.SPECULATIVE:
            self._remove(slot)
        else:
            self._state.change(slot, retiring=True)

    def _unretire(self, machine_id: str) -> None:
        slot = self._state.slots.get(machine_id)
        if slot is not None:
            self._state.change(slot, retiring=False)

    def _hide(self, machine_id: str) -> None:
        slot = self._state.slots.get(machine_id)
        hidden = slot is not None and slot.offer in self._unavailable
        if slot is not None and hidden and slot.state is MachineState.SPECULATIVE and not slot.withheld:
            self._state.change(slot, withheld=True)

    def _show(self, machine_id: str) -> None:
        slot = self._state.slots.get(machine_id)
        if slot is not None and slot.withheld and slot.offer not in self._unavailable:
            self._state.change(slot, withheld=False)

    def _adopt(self, found: DiscoveredHost, now: int, machine_id: str) -> None:
        """Recover a host that the store does not know (P-124): bound, idle, or else quarantined."""
        slot = self._state.slots.get(machine_id)
        if slot is not None and not _can_adopt(slot, found):
            return
        if slot is None:
            key = machine_id.rpartition("-")[0]
            if found.offering is not None:
                shape = offering_shape(found.offering)
                key = offer_key(shape)
                if key not in self._offers:
                    self._know(Offer(key, shape, 0))
            elif key not in self._offers:
                self._state.report(
                    Reconciled("error", f"host {found.host.ref} of machine {machine_id} has no offering")
                )
                return
            shape = self._offers[key].shape
            slot = Slot(machine_id, key, shape, MachineState.SPECULATIVE, retiring=key not in self._declared)
        host = HostRef(self._settings.provider, found.host.ref)
        values: dict[str, Any] = {"host": host, "withheld": False, "last_error": ""}
        binding = found.host.binding
        if binding is None:
            error = last_error(
                "host",
                "binding-unknown",
                f"host {found.host.ref} exists but nothing says whether it serves a cluster; look at it, then"
                " delete it on the substrate or tag it",
            )
            values |= {"state": MachineState.FAILED, "last_error": error}
        elif binding.cluster:
            values |= {
                "state": MachineState.CONFIGURED,
                "cluster": binding.cluster,
                "binding": write_metadata(binding.metadata),
            }
        else:
            values |= {"state": MachineState.IDLE}
        if slot.state is MachineState.FAILED:
            self._state.report(RepairTried(slot.id, "repaired", "its host says by now whom it serves"))
        adopted = replace(slot, **values, **self.refined_shape(slot, found.host))
        kept = self._insert(adopted)
        if kept.state is MachineState.FAILED:
            self._state.later(partial(self.on_failed, kept, now))

    def _insert(self, slot: Slot) -> Slot:
        kept = self._state.insert(slot)
        self._state.later(partial(self._remember, slot))
        return kept

    def _remember(self, slot: Slot) -> None:
        self._members.setdefault(slot.offer, {})[slot.id] = None

    def _remove(self, slot: Slot) -> None:
        self._state.remove(slot)
        self._state.later(partial(self._forget, slot))

    def _forget(self, slot: Slot) -> None:
        self._members[slot.offer].pop(slot.id, None)

    # ---- lost hosts

    def _watch(self) -> None:
        """Look at every settled host once (provider.md §6.4), unless the last round is still under way."""
        if not self._settings.capabilities.inspect or self._watching:
            return
        for machine_id in list(self._state.listing.in_state(MachineState.IDLE, MachineState.CONFIGURED)):
            life = _life(self._state.slots.committed[machine_id])
            self._watching += 1
            self._work.submit(
                Job(
                    "inspect",
                    machine_id,
                    self._inspection(machine_id),
                    partial(self._looked, machine_id, life),
                )
            )

    def _inspection(self, machine_id: str) -> Callable[[int], tuple[Any, int]]:
        def prepare(_now: int) -> tuple[Any, int]:
            slot = self._state.slots.committed.get(machine_id)
            return (slot.view() if slot is not None else None), self._settings.describe_timeout

        return prepare

    def _looked(
        self, machine_id: str, life: tuple[Any, ...], value: Any, error: BaseException | None, now: int
    ) -> None:
        self._state.later(self._watched)
        slot = self._state.slots.get(machine_id)
        if slot is None or slot.state not in (MachineState.IDLE, MachineState.CONFIGURED):
            return
        if isinstance(error, NotFound):
            value = HostStatus.GONE
        if _life(slot) == life and value in (HostStatus.GONE, HostStatus.STOPPED):
            text = last_error("host", "host-lost", f"host {slot.host.ref} is {value.value}")
            failed = self._state.change(slot, state=MachineState.FAILED, last_error=text)
            self._state.report(HostLost(machine_id, text))
            self._state.later(partial(self.on_failed, failed, now))

    def _watched(self) -> None:
        self._watching -= 1

    # ---- prices and notices

    def _price(self, update: PriceUpdate) -> None:
        try:
            named = (update.instance_type, update.zone, update.capacity_type)
            for key in self._named.get(named, ()):
                self._reprice(key, update)
        except (ShapeError, TypeError) as error:
            self._state.report(PriceRefreshed("error", f"{update}: {error}"))
        else:
            self._state.report(PriceRefreshed("ok"))

    def _reprice(self, key: str, update: PriceUpdate) -> None:
        offer = self._offers[key]
        if update.price_per_hour == 0 != offer.shape.price_per_hour:
            raise ShapeError("price_per_hour is 0, which would win every choice")
        shape = _repriced(offer.shape, update)
        is_guessed = key in self._guessed
        if shape is offer.shape and not is_guessed:
            return

        def apply() -> None:
            self._offers[key] = replace(self._offers[key], shape=shape)
            change = partial(self._revalue, update) if is_guessed else self._restamp
            self._queue(change, self._members.get(key, {}))

        self._state.later(apply)

    def _interruption(self, notice: Interruption) -> None:
        slot = self._state.slots.get(notice.machine_id)
        if slot is None or not slot.host:
            return
        risk = max(slot.risk, _IMMINENT_RISK if notice.imminent else _HINT_RISK)
        self._state.report(Interrupted(slot.id, notice.imminent))
        if risk > slot.risk:
            shape = refine(self._base(slot), slot.refined, risk)
            self._state.change(slot, risk=risk, shape=shape)

    # ---- helpers

    def _know(self, offer: Offer) -> None:
        self._offers[offer.key] = offer
        named = (offer.shape.instance_type, offer.shape.zone, offer.shape.capacity_type)
        self._named.setdefault(named, {})[offer.key] = None

    def _window_over(self, offer: str, now: int) -> None:
        if self._unavailable.get(offer, now + 1) <= now:
            self._state.later(partial(self._reopen, offer))

    def _reopen(self, offer: str) -> None:
        self._unavailable.pop(offer, None)
        self._queue(self._show, self._members.get(offer, {}))

    def _queue(self, change: Callable[[str], None], ids: Iterable[str]) -> None:
        self._backlog.extend((change, machine_id) for machine_id in ids)

    def _worked(self, count: int) -> None:
        for _ in range(count):
            self._backlog.popleft()

    def _is_stamped(self, slot: Slot) -> bool:
        return slot.shape is refine(self._base(slot), slot.refined, slot.risk)

    def _base(self, slot: Slot) -> Shape:
        """What the machine is before its host and its notices change it."""
        return slot.shape if slot.offer in self._guessed else self._offers[slot.offer].shape

    def _job(self, method: str, end: Callable[[Any, BaseException | None, int], None]) -> Job:
        return Job(method, "", lambda _: (None, self._settings.describe_timeout), end)


def _can_adopt(slot: Slot, found: DiscoveredHost) -> bool:
    """Whether the host is one that the machine does not know of, or of which it can be told by now whom it
    serves: a bootstrap that was under way has ended, or somebody has looked and tagged it."""
    if slot.state is MachineState.FAILED and reason(slot.last_error) == "binding-unknown":
        return found.host.binding is not None and slot.host.ref == found.host.ref
    return slot.state is MachineState.SPECULATIVE


def _life(slot: Slot) -> tuple[Any, ...]:
    """What of a machine is another once its host may be; unlike its revision no price moves it."""
    return slot.state, slot.host, slot.operations


def _repriced(shape: Shape, update: PriceUpdate) -> Shape:
    return shape.vary(
        price_per_hour=update.price_per_hour, interruption_probability=update.interruption_probability
    )


def _index(slot: Slot) -> tuple[int, str]:
    tail = slot.id.rpartition("-")[2]
    return (int(tail) if tail.isdecimal() else -1, slot.id)


def _listed(method: str, value: object) -> Sequence[Any]:
    if not isinstance(value, Iterable):
        raise DescribeError(f"the backend's {method}() returned {value!r}, not a list")
    return list(value)


def _checked(found: object) -> DiscoveredHost:
    if not isinstance(found, DiscoveredHost) or not is_host_ref(found.machine_id):
        raise DescribeError(f"the backend's discover() returned {found!r}, not hosts with a machine id")
    _expect(found.host, Host, found.machine_id)
    if not is_host_ref(found.host.ref):
        raise DescribeError(f"the backend's discover() returned machine {found.machine_id} without a ref")
    publish_quantities("allocatable", found.host.allocatable or {})
    publish_quantities("resources", found.host.resources or {})
    if (binding := found.host.binding) is not None:
        _expect(binding, Binding, found.machine_id)
        check_texts(f"the binding of machine {found.machine_id}", {"cluster": binding.cluster})
        check_texts(f"the metadata of machine {found.machine_id}", binding.metadata)
    if found.offering is not None:
        _expect(found.offering, Offering, found.machine_id)
        offering_shape(found.offering)
    return found


def _expect(value: object, kind: type, machine_id: str) -> None:
    if not isinstance(value, kind):
        raise DescribeError(
            f"the backend's discover() returned machine {machine_id} with {value!r}, not a {kind.__name__}"
        )


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
