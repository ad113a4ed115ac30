"""The fake's substrate: hosts that exist, what may befall them, and when. It outlives the provider.

It has no clock: every method is told the time in nanoseconds. What it draws for a machine depends on the
seed, the machine and how often it was asked, never on what other machines did in between; so the same seed
gives the same fate to a machine under virtual time and over gRPC.
"""

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from bigfleet_base.model import CapacityType
from bigfleet_providerkit.backend import (
    UNBOUND,
    Binding,
    CleanupResult,
    DiscoveredHost,
    Host,
    HostStatus,
    Interruption,
    MachineView,
    Offering,
    Operation,
    PriceUpdate,
)
from bigfleet_providerkit.errors import BackendError, InsufficientCapacity, NotFound, Terminal
from bigfleet_providerkit.fake.hosts import FakeHost, Step
from bigfleet_providerkit.fake.knobs import CLASSES, Knobs, Latency
from bigfleet_providerkit.offerings import check_offerings
from bigfleet_providerkit.records import Shape
from bigfleet_providerkit.work import NANOS

_HOUR: Final = 3_600 * NANOS
_SHORT: Final = NANOS // 4
"""A node that is Ready within this is waited for: the kit's first pause between two probes is longer."""
_PRICE_BOUNDS: Final = (0.1, 10.0)
"""How far a price walks, as factors of where it began."""

_Named: TypeAlias = tuple[str, str, CapacityType]


class Substrate:
    """Hosts and offerings under the knobs' rule."""

    def __init__(self, knobs: Knobs, life: str = "") -> None:
        """``life`` tells hosts of this substrate from those that died with an earlier process."""
        self.knobs = knobs
        self._prefix = f"fake{life}-"
        self._foreign_gone: set[str] = set()
        self.hosts: dict[str, FakeHost] = {}
        """By reference. More than one of a machine is what a provider must never cause."""
        self.interruptions: deque[Interruption] = deque()
        self.price_updates: deque[PriceUpdate] = deque()
        self.offerings: list[Offering] = []
        self._of_machine: dict[str, dict[str, FakeHost]] = {}
        self._steps: dict[str, Step] = {}
        self._asked: Counter[tuple[str, str]] = Counter()
        self._fated: dict[tuple[str, str], str] = {}
        """The operation whose fate was last drawn: a failure is drawn once for a transition, not per try."""
        self._fail_next: dict[tuple[str, str], BackendError] = {}
        self._stockouts: dict[str, int] = {}
        self._agenda: list[tuple[int, int, Callable[[int], None]]] = []
        self._entries = 0
        self._prices: dict[_Named, float] = {}
        self._probabilities: dict[_Named, float] = {}

    # ---- what happens by itself

    def offer(self, offerings: Sequence[Offering], now: int = 0) -> None:
        """Take over the quota, once, and make the machines that are to exist already."""
        assert not self.offerings
        self.offerings = list(offerings)
        offers = check_offerings(offerings).values()
        for seed in self.knobs.preseed:
            if not any(_fits(seed.offering, *_named(offer.shape)) for offer in offers):
                raise ValueError(
                    f"machines of {seed.offering} exist already, but no offering is of that name"
                )
        for offer in offers:
            shape = offer.shape
            named = _named(shape)
            self._prices[named] = shape.price_per_hour
            self._probabilities[named] = shape.interruption_probability
            bindings = [
                binding
                for seed in self.knobs.preseed
                if _fits(seed.offering, *named)
                for binding in (*[UNBOUND] * seed.idle, *seed.bound)
            ]
            if len(bindings) > offer.count:
                raise ValueError(
                    f"{len(bindings)} machines of {shape.instance_type} exist already, but {offer.count} may"
                )
            for index, binding in enumerate(bindings):
                machine_id = offer.machine_id(index)
                host = self._make(f"{self._prefix}seeded-{machine_id}", machine_id, named, now)
                if binding.cluster:
                    host.cluster, host.metadata = binding.cluster, dict(binding.metadata)
                    host.bootstrapped_at = host.ready_at = now
        if self.knobs.price_walk:
            self._plan(now + self.knobs.price_interval, self._walk)

    def next_event(self) -> int | None:
        """When ``tick`` has something to do."""
        return self._agenda[0][0] if self._agenda else None

    def tick(self, now: int) -> None:
        """Let happen what is due: reclaims, their notices, price changes."""
        while self._agenda and self._agenda[0][0] <= now:
            at, _, happen = heapq.heappop(self._agenda)
            happen(at)

    # ---- what tests and simulations do to it

    def fail_next(self, machine_id: str, kind: str, failure: str = "terminal") -> None:
        """Let the machine's next transition of this kind fail."""
        self._fail_next[machine_id, kind] = CLASSES[failure]("fault requested for this machine")

    def fail_machine(self, machine_id: str, now: int) -> None:
        """Break a machine: the call under way fails at once; a settled host stops."""
        step = self._steps.get(machine_id)
        if step is not None:
            step.fail(Terminal("the machine broke"), now)
            step.changed()
        for host in self._of_machine.get(machine_id, {}).values():
            host.is_stopped = True

    def lose_host(self, machine_id: str) -> None:
        """The machine's host vanishes without a word."""
        for ref in list(self._of_machine.get(machine_id, ())):
            self._forget(ref)

    def remove(self, machine_id: str) -> None:
        """The machine goes for good: no host, and one less of its kind may exist."""
        self.lose_host(machine_id)
        key = machine_id.rpartition("-")[0]
        places = {offer: place for place, offer in enumerate(check_offerings(self.offerings))}
        place = places[key]
        self.offerings[place] = replace(self.offerings[place], count=self.offerings[place].count - 1)

    def stock_out(self, offering: str, until: int) -> None:
        """No machine of these offerings can be made before then."""
        self._stockouts[offering] = until

    def staged(self) -> list[str]:
        """Machines whose call waits for ``complete``, or hangs."""
        return [machine_id for machine_id, step in self._steps.items() if step.at is None]

    def complete(self, machine_id: str, now: int) -> None:
        """Let a staged call end well."""
        step = self._steps[machine_id]
        step.complete(now)
        step.changed()

    # ---- what the provider asks of it

    def begin(self, method: str, argument: Any, failed_kind: str, now: int) -> Step:
        """Start a backend call. Whoever asked calls ``end`` when it is ``at``, once."""
        if argument is not None:
            self._adopt(argument.machine if isinstance(argument, Operation) else argument)
        match method:
            case "offerings":
                return Step("", now, lambda _: self._current_offerings())
            case "discover":
                return Step("", now, self._discover)
            case "inspect":
                return Step("", now, lambda _: self._inspect(argument, now))
            case "cleanup":
                return Step("", now, lambda _: self._cleanup(argument, failed_kind))
            case "node_ready":
                return self._node_ready(argument, now)
            case _:
                return self._transition(method, argument, now)

    def ended(self, step: Step) -> None:
        """The call has come back, or whoever made it died."""
        if self._steps.get(step.machine_id) is step:
            del self._steps[step.machine_id]

    def abandon_all(self) -> None:
        """The provider died: nobody waits for its calls any more."""
        self._steps.clear()

    def hosts_of(self, machine_id: str) -> list[FakeHost]:
        return list(self._of_machine.get(machine_id, {}).values())

    def _transition(self, kind: str, op: Operation, now: int) -> Step:
        machine, knobs = op.machine, self.knobs
        rng = self._rng(kind, machine.id)
        at = now + self._latency(kind, machine).draw(rng)
        ready = self._latency("ready", machine).draw(rng)
        fate: BackendError | None = None
        hangs = leaves_host = False
        if self._fated.get((machine.id, kind)) != op.operation_id:
            self._fated[machine.id, kind] = op.operation_id
            if rng.random() < knobs.failure_rate.get(kind, 0.0):
                fate = CLASSES[knobs.failure_class.get(kind, "terminal")]("fault drawn by the fake")
            hangs = rng.random() < knobs.hang_rate.get(kind, 0.0)
            leaves_host = rng.random() < 0.5
        fate = self._fail_next.pop((machine.id, kind), fate)
        if kind == "create" and (window := self._stockout(machine, now)):
            fate = InsufficientCapacity("out of stock", retry_after=window / NANOS)
        step = Step(machine.id, at, lambda _: None, knobs.late_success)
        if fate is not None:
            # A create that fails has made its host half of the time: that is what cleanup is for.
            if kind == "create" and leaves_host and not isinstance(fate, InsufficientCapacity):
                self._create(op, now, at)
            step.fail(fate, at)
        else:
            if hangs or kind in knobs.stage:
                step.at = None
            step.end = self._act(kind, op, now, step.at, ready)
        self._steps[machine.id] = step
        return step

    def _act(self, kind: str, op: Operation, now: int, at: int | None, ready: int) -> Callable[[int], Any]:
        """Begin what the transition does; returns how it ends."""
        match kind:
            case "create":
                return self._create(op, now, at)
            case "configure":
                return self._configure(op, at, ready)
            case "drain":
                return lambda _: self._drain(op)
            case _:
                return lambda _: self.lose_host(op.machine.id)

    def _create(self, op: Operation, now: int, at: int | None) -> Callable[[int], Any]:
        machine = op.machine
        ref = f"{self._prefix}{op.operation_id}"
        host = self.hosts.get(ref)
        if host is None:
            named = (machine.instance_type, machine.zone, machine.capacity_type)
            host = self._make(ref, machine.id, named, at if at is not None else now)

        def end(_now: int) -> Host:
            if self.hosts.get(ref) is not host:
                raise Terminal("the host vanished while it started")
            return Host(ref)

        return end

    def _configure(self, op: Operation, at: int | None, ready: int) -> Callable[[int], Any]:
        host = self.hosts.get(op.machine.host_ref)
        if host is not None:
            # By time and not by callback: a bootstrap runs to its end also when the provider has died.
            host.cluster, host.metadata = op.cluster_id, dict(op.machine.metadata)
            host.bootstrapped_at = at
            host.ready_at = None if at is None else at + ready

        def end(moment: int) -> None:
            if host is None or self.hosts.get(host.ref) is not host:
                raise Terminal("the host is gone")
            if host.bootstrapped_at is None:
                host.bootstrapped_at, host.ready_at = moment, moment + ready

        return end

    def _drain(self, op: Operation) -> None:
        host = self.hosts.get(op.machine.host_ref)
        if host is None:
            raise NotFound("the host is gone")
        host.unbind()

    def _node_ready(self, op: Operation, now: int) -> Step:
        host = self.hosts.get(op.machine.host_ref)
        at = None if host is None else host.ready_at
        if at is not None and at - now <= _SHORT:
            return Step("", max(now, at), lambda _: True)
        return Step("", now, lambda _: False)

    def _inspect(self, machine: MachineView, now: int) -> HostStatus:
        hosts = [host for host in self.hosts_of(machine.id) if machine.host_ref in ("", host.ref)]
        if not hosts:
            return HostStatus.GONE
        host = hosts[0]
        if host.is_stopped:
            return HostStatus.STOPPED
        is_done = host.bootstrapped_at is not None and host.bootstrapped_at <= now
        is_bootstrapped = is_done and host.cluster == machine.cluster != ""
        return HostStatus.BOOTSTRAPPED if is_bootstrapped else HostStatus.RUNNING

    def _cleanup(self, machine: MachineView, failed_kind: str) -> CleanupResult:
        host = self.hosts.get(machine.host_ref)
        if host is None or host.is_stopped or failed_kind in ("create", "delete", "host"):
            self.lose_host(machine.id)
            return CleanupResult.GONE
        host.unbind()
        return CleanupResult.CLEAN

    def _discover(self, now: int) -> list[DiscoveredHost]:
        running = [host for host in self.hosts.values() if host.running_at <= now and not host.is_stopped]
        return [
            DiscoveredHost(host.machine_id, Host(host.ref, binding=_binding(host, now))) for host in running
        ]

    # ---- helpers

    def _current_offerings(self) -> list[Offering]:
        return [
            replace(one, price_per_hour=self._prices[one.instance_type, one.zone, one.capacity_type])
            for one in self.offerings
        ]

    def _make(self, ref: str, machine_id: str, named: _Named, running_at: int) -> FakeHost:
        host = FakeHost(ref, machine_id, running_at)
        self.hosts[ref] = host
        self._of_machine.setdefault(machine_id, {})[ref] = host
        if named[2] is CapacityType.SPOT and self.knobs.spot_hazard:
            self._plan_reclaim(host, named)
        return host

    def _adopt(self, machine: MachineView) -> None:
        """Take a host of an earlier process for one of ours: nobody can tell that it died, and it is fake."""
        ref = machine.host_ref
        if not ref or ref in self.hosts or ref in self._foreign_gone or ref.startswith(self._prefix):
            return
        host = self.hosts[ref] = FakeHost(ref, machine.id, 0, machine.cluster, dict(machine.metadata))
        self._of_machine.setdefault(machine.id, {})[ref] = host

    def _forget(self, ref: str) -> None:
        if not ref.startswith(self._prefix):
            self._foreign_gone.add(ref)
        host = self.hosts.pop(ref)
        of_machine = self._of_machine[host.machine_id]
        del of_machine[ref]
        if not of_machine:
            del self._of_machine[host.machine_id]

    def _plan_reclaim(self, host: FakeHost, named: _Named) -> None:
        rate = -math.log1p(-min(self._probabilities[named], 0.999_999)) * self.knobs.spot_hazard
        hours = self._rng("reclaim", host.machine_id).expovariate(rate)
        self._plan(host.running_at + round(hours * _HOUR), lambda at: self._notify(host, at))

    def _notify(self, host: FakeHost, at: int) -> None:
        if self.hosts.get(host.ref) is host:
            self.interruptions.append(Interruption(host.machine_id, imminent=True))
            self._plan(at + self.knobs.spot_notice, lambda _: self._reclaim(host))

    def _reclaim(self, host: FakeHost) -> None:
        if self.hosts.get(host.ref) is host:
            self._forget(host.ref)

    def _walk(self, at: int) -> None:
        rng = self._rng("price", "")
        low, high = _PRICE_BOUNDS
        for offering in self.offerings:
            named = (offering.instance_type, offering.zone, offering.capacity_type)
            first = offering.price_per_hour
            if first:
                price = self._prices[named] * math.exp(rng.gauss(0.0, self.knobs.price_walk))
                self._prices[named] = price = min(max(price, low * first), high * first)
                self.price_updates.append(PriceUpdate(*named, price_per_hour=price))
        self._plan(at + self.knobs.price_interval, self._walk)

    def _plan(self, at: int, happen: Callable[[int], None]) -> None:
        self._entries += 1
        heapq.heappush(self._agenda, (at, self._entries, happen))

    def _rng(self, purpose: str, machine_id: str) -> random.Random:
        self._asked[purpose, machine_id] += 1
        return random.Random(f"{self.knobs.seed}/{purpose}/{machine_id}/{self._asked[purpose, machine_id]}")  # noqa: S311  # a fake's dice

    def _latency(self, step: str, machine: MachineView) -> Latency:
        named = (machine.instance_type, machine.zone, machine.capacity_type)
        chosen = self.knobs.latency[step]
        longest = 0
        for name, latency in self.knobs.latency.items():
            own, _, selector = name.partition("@")
            if own == step and len(selector) > longest and _fits(selector, *named):
                chosen, longest = latency, len(selector)
        return chosen

    def _stockout(self, machine: MachineView, now: int) -> int:
        named = (machine.instance_type, machine.zone, machine.capacity_type)
        return max(
            (
                until - now
                for selector, until in self._stockouts.items()
                if until > now and _fits(selector, *named)
            ),
            default=0,
        )


def _named(shape: Shape) -> _Named:
    return shape.instance_type, shape.zone, shape.capacity_type


def _fits(selector: str, instance_type: str, zone: str, capacity_type: CapacityType) -> bool:
    name = f"{instance_type}/{zone}/{capacity_type.name.lower()}"
    return name == selector or name.startswith(f"{selector}/")


def _binding(host: FakeHost, now: int) -> Binding | None:
    if not host.cluster:
        return UNBOUND
    is_done = host.bootstrapped_at is not None and host.bootstrapped_at <= now
    return Binding(host.cluster, host.metadata) if is_done else None
