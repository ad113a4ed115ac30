"""What providers say becomes what the shard knows (shard.md §5).

Lists come as news: a record that is not named is unchanged, a machine that was gone is still gone. So an
ordinary record costs one write and leaves nothing behind; only machines that are not where we have them, or
nowhere at all, are followed from List to List.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.inventory import UnknownMachineError
from bigfleet.engine.options import SECOND
from bigfleet.engine.records import Entry
from bigfleet.shard.core.context import Cause, Context, Timer
from bigfleet.shard.core.effects import LogLevel
from bigfleet.shard.core.events import FloorRaised, GetEnded, Listed, ListEnded, ListFailed, Observed
from bigfleet.shard.core.fleet import Fleet
from bigfleet.shard.core.holdings import Holdings, HoldingsState
from bigfleet.shard.core.jumps import Jumps, JumpsState
from bigfleet.shard.core.lists import LIMIT, Lists, ListsState
from bigfleet.shard.core.merge import agrees, is_expected, is_within, merged
from bigfleet.shard.core.namesakes import Namesakes, NamesakesState
from bigfleet.shard.core.outbox import Outboxes
from bigfleet.shard.core.removals import Removals, RemovalsState
from bigfleet.shard.core.rereads import Rereads, RereadsState
from bigfleet.shard.core.stuck import LOOK_EVERY, Stuck, StuckState
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model import Machine, MachineState
from bigfleet_base.telemetry.catalogue import shard as series

SLICE: Final = 256
"""Decided changes that are written in one go, so that a List which changes everything holds nobody up."""


@dataclass(slots=True)
class ProviderState:
    """What is followed at one provider from List to List."""

    jumps: JumpsState = field(default_factory=JumpsState)
    removals: RemovalsState = field(default_factory=RemovalsState)
    rereads: RereadsState = field(default_factory=RereadsState)
    todo: list[tuple[str, int]] = field(default_factory=list)
    """Machines whose jump or removal is decided and not written yet, the last one first, and when the answer
    was asked for that decided it."""


@dataclass(slots=True)
class ReconcileState:
    lists: ListsState = field(default_factory=ListsState)
    holdings: HoldingsState = field(default_factory=HoldingsState)
    namesakes: NamesakesState = field(default_factory=NamesakesState)
    stuck: StuckState = field(default_factory=StuckState)
    providers: dict[str, ProviderState] = field(default_factory=dict)
    """By name: those of the flag."""
    verifying: dict[str, int] = field(default_factory=dict)
    """Since when the first record that is newer is believed, whatever it says (X4). Ids of machines."""


class Reconcile:
    """Merges Lists and Gets into the fleet."""

    def __init__(
        self,
        ctx: Context,
        fleet: Fleet,
        outboxes: Outboxes,
        is_busy: Callable[[str], bool],
        state: ReconcileState,
    ) -> None:
        self._ctx = ctx
        self._fleet = fleet
        self._inventory = ctx.engine.inventory
        self._outboxes = outboxes
        self._is_busy = is_busy
        self.state = state
        self._lists = Lists(ctx, state.lists)
        self._holdings = Holdings(fleet, state.holdings)
        self._namesakes = Namesakes(ctx, state.namesakes)
        self._stuck = Stuck(ctx, fleet, state.stuck)
        self._providers = {
            name: _Provider(ctx, name, is_busy, state.providers.setdefault(name, ProviderState()))
            for name in ctx.settings.providers
        }
        fleet.listeners += [self._holdings.changed, self._stuck.changed, self._changed]

    def start(self) -> None:
        """Begin to fence, to list and to look for stuck machines."""
        self._lists.start()
        if not self._ctx.settings.stepped:
            self._ctx.timers.at(self._ctx.now + LOOK_EVERY, Timer.STUCK)

    # What is known of the providers

    @property
    def all_listed(self) -> bool:
        """Whether every provider has been listed completely once."""
        return all(loop.is_listed for loop in self.state.lists.loops.values())

    @property
    def acting(self) -> bool:
        """Whether the machines are known as well as they will be: all listed, or not waited for (L9)."""
        return all(map(self._lists.is_settled, self._providers))

    def provider_of(self, machine_id: str) -> str:
        return self._fleet.provider(machine_id)

    def withholds(self, action: Action) -> bool:
        """Whether an action would shrink the fleet by what a provider said too long ago (L4)."""
        if not self._lists.is_any_failing:
            return False
        if action.kind is ActionKind.DELETE:
            return self._lists.is_failing(self.provider_of(action.machine_id))
        return action.kind is ActionKind.RECLAIM and any(
            self._lists.is_failing(name) and self._holdings.has_bound(name, action.cluster)
            for name in self._providers
        )

    def show_gauges(self) -> None:
        held = sum(provider.removals.state.held for provider in self._providers.values())
        self._ctx.mark(series.RECONCILE_REMOVALS_HELD, held)
        self._stuck.show_gauges()

    # Events

    def floor_raised(self, event: FloorRaised) -> bool:
        """The fence call was answered (F6); False: it is this process that is fenced."""
        self._lists.floor_raised(event.provider, event.failure)
        return event.failure is None or event.failure.kind != FailureKind.FENCED

    def listed(self, event: Listed) -> None:
        if self._lists.must_wait(event.provider):
            self.state.lists.loops[event.provider].kept.append(event)
        else:
            self._merge_slice(event)

    def list_ended(self, event: ListEnded) -> None:
        self._lists.ended(event.provider)
        if self._lists.must_wait(event.provider):
            self.state.lists.loops[event.provider].kept.append(event)
        else:
            self._merge_end(event)
        self._forget_touched()

    def list_failed(self, event: ListFailed) -> None:
        self._lists.failed(event.provider, event.error)
        self._forget_touched()

    def got(self, event: GetEnded) -> None:
        """The answer to a Get that was sent from here."""
        provider, machine_id = self._providers[event.provider], event.machine_id
        is_awaited = provider.rereads.answered(machine_id)
        if event.observed is not None:
            is_ours = is_within(event.observed.machine, self._ctx.settings.domains)
            if is_awaited or self._entry(machine_id) is not None:
                self._merge(event.provider, event.observed, event.started, is_get=True)
        else:
            assert event.failure is not None, "a Get that ended with nothing"
            is_ours = event.failure.kind != FailureKind.NOT_FOUND
            if not is_ours:
                self._not_found(event.provider, machine_id, event.started)
            elif is_awaited and machine_id not in self.state.stuck.checked:
                # What the Get was to tell is not known yet, whatever it failed with.
                provider.rereads.want_later(machine_id)
        if is_ours:
            provider.removals.found(machine_id)
        else:
            self._decide(event.provider, provider.removals.confirmed(machine_id), event.started)
        if event.observed is not None:
            self._stuck.answered(machine_id)

    def verify(self, machine_id: str) -> None:
        """Nobody knows what became of an operation: the next record decides (X4)."""
        self.state.verifying[machine_id] = self._ctx.now

    def released(self, machine_id: str) -> None:
        """The machine has no operation any more."""
        for provider in self._providers.values():
            provider.rereads.released(machine_id)

    def timer(self, timer: Timer, key: str) -> None:
        match timer:
            case Timer.LIST if key == LIMIT:
                self._lists.end_wait()
                self._let_in()
            case Timer.LIST:
                self._step(key)
            case Timer.REREAD:
                self._providers[key].rereads.timer()
            case Timer.STUCK:
                self._look_for_stuck()

    # Merging

    def _merge_slice(self, event: Listed) -> None:
        provider = self._providers[event.provider]
        for observed in event.changed:
            self._merge(event.provider, observed, event.started)
        for machine_id in event.rejected:
            provider.jumps.refused(machine_id)
            provider.removals.refused(machine_id)
        for machine_id in event.gone:
            self._lacks(event.provider, machine_id)

    def _merge(self, name: str, observed: Observed, started: int, *, is_get: bool = False) -> None:
        """One record, in the order of shard.md §5."""
        theirs = observed.machine
        if not is_within(theirs, self._ctx.settings.domains):
            # Somebody else's from now on, which for us is gone; for a new one there is nothing to do.
            self._lacks(name, theirs.id)
            return
        known = self._entry(theirs.id)
        if known is None:
            self._insert(name, observed)
            return
        ours, holder = known.machine, known.sidecar.provider
        if holder != name:
            self._namesakes.refuse(name, holder, theirs)
            return
        provider = self._providers[name]
        if not is_get:
            provider.removals.seen(theirs.id)
        if not self._is_told(theirs.id, started, is_get=is_get):
            provider.jumps.forget(theirs.id)
            provider.rereads.want(theirs.id)
            return
        is_verified = self.state.verifying.pop(theirs.id, None) is not None
        if agrees(ours, theirs):
            provider.jumps.forget(theirs.id)
            refreshed = merged(ours, theirs)
            if refreshed != ours:
                self._fleet.observe(refreshed)
        elif is_expected(ours, theirs) or is_verified:
            self._adopt(name, ours, observed)
        elif is_get:
            self._jump(name, ours, observed)
        else:
            provider.jumps.see(observed)

    def _insert(self, name: str, observed: Observed) -> None:
        machine = observed.machine
        is_draining = machine.state is MachineState.DRAINING
        self._fleet.insert(machine, name, observed.preemptor if is_draining else None)
        self._holdings.insert(machine, name)
        if is_draining and observed.instruction_id:
            self._outboxes.echoed(machine.id, observed.instruction_id)

    def _adopt(self, name: str, ours: Machine, observed: Observed) -> None:
        """Take the machine to where the provider has it."""
        self._providers[name].jumps.forget(ours.id)
        machine = merged(ours, observed.machine)
        self._fleet.observe(machine, observed.preemptor)
        if machine.state is MachineState.DRAINING and observed.instruction_id:
            self._outboxes.echoed(machine.id, observed.instruction_id)

    def _jump(self, name: str, ours: Machine, observed: Observed) -> None:
        """Take the machine to a place where nobody expected it, and say so."""
        theirs = observed.machine
        before, after = ours.state.title, theirs.state.title
        cluster = theirs.cluster or ours.cluster
        self._ctx.log(
            LogLevel.WARN,
            "provider shows a change that was not asked for; adopted",
            machine=ours.id,
            cluster=cluster,
            **{"from": before, "to": after},
        )
        self._ctx.count(series.RECONCILE_OBSERVED_JUMPS, before, after)
        self._ctx.audit(
            "machine.transition", machine_id=ours.id, cluster=cluster or None, from_=before, to=after
        )
        self._adopt(name, ours, observed)

    def _lacks(self, name: str, machine_id: str) -> None:
        """The provider does not have the machine, or no longer for us."""
        if self._holder(machine_id) == name:
            self._providers[name].jumps.forget(machine_id)
            self._providers[name].removals.missing(machine_id)
        else:
            self._namesakes.gone(name, machine_id)

    def _merge_end(self, event: ListEnded) -> None:
        """All news of a List are merged: count what it has shown by its silence."""
        provider, loop = self._providers[event.provider], self.state.lists.loops[event.provider]
        loop.is_listed = loop.is_listed or event.complete
        self._namesakes.list_ended(event.provider)
        jumped, untold = provider.jumps.list_ended(lambda m: self._is_told(m, event.started))
        for machine_id in untold:
            provider.rereads.want(machine_id)
        held = provider.removals.state.held
        gone = provider.removals.list_ended(
            self._holdings.count(event.provider), lambda m: not self._is_stale(m, event.started)
        )
        self._guard(event.provider, held)
        self._verify_silent(event)
        provider.rereads.list_ended()
        self._decide(event.provider, jumped + gone, event.started)
        self._ctx.wake(Cause.TIMER)
        self._let_in()

    def _guard(self, name: str, held_before: int) -> None:
        provider = self._providers[name]
        held = provider.removals.state.held
        if held and held != held_before:
            self._ctx.log(
                LogLevel.WARN,
                "mass removal held: machines missing from List are kept until it is confirmed",
                provider=name,
                missing=held,
                machines=self._holdings.count(name),
            )
        for machine_id in provider.removals.draw_sample():
            provider.rereads.want(machine_id)

    def _verify_silent(self, event: ListEnded) -> None:
        """A delta names no machine that has not changed, one under verification neither: ask for it."""
        for machine_id in sorted(m for m, since in self.state.verifying.items() if since < event.started):
            if self._holder(machine_id) == event.provider:
                self._providers[event.provider].rereads.want(machine_id)

    def _not_found(self, name: str, machine_id: str, started: int) -> None:
        """A Get finds no machine. For one under verification that is the answer (X4); otherwise the Lists
        will tell."""
        is_verified = machine_id in self.state.verifying and self._holder(machine_id) == name
        if is_verified and self._is_told(machine_id, started, is_get=True):
            self._holdings.remove(machine_id)

    # Writing what is decided, and merging what was kept, a slice at a time

    def _decide(self, name: str, machine_ids: list[str], started: int) -> None:
        if machine_ids:
            todo = self.state.providers[name].todo
            todo[:0] = [(machine_id, started) for machine_id in reversed(machine_ids)]
            self._work(name)

    def _let_in(self) -> None:
        """Merge what was kept of the providers whose turn it is now."""
        for name, loop in self.state.lists.loops.items():
            if loop.kept and self._lists.is_its_turn(name) and not self._work(name):
                # The time for its next List may have come and gone while this one was kept.
                self._lists.ask_if_due(name)

    def _step(self, name: str) -> None:
        """A time has come for a provider: work that is left comes before another List."""
        if not self._work(name):
            self._lists.ask_if_due(name)

    def _work(self, name: str) -> bool:
        """Do a slice of what waits, or all of it for a driver that owns the time; returns whether something
        is left, for which a time is set then."""
        todo, loop = self.state.providers[name].todo, self.state.lists.loops[name]
        while todo or (loop.kept and self._lists.is_its_turn(name)):
            if todo:
                self._write_decided(name)
            else:
                self._merge_kept(name)
            if not self._ctx.settings.stepped:
                break
        is_left = bool(todo or (loop.kept and self._lists.is_its_turn(name)))
        if is_left:
            self._ctx.timers.at(self._ctx.now + 1, Timer.LIST, name)
        return is_left

    def _write_decided(self, name: str) -> None:
        provider, todo = self._providers[name], self.state.providers[name].todo
        decided, todo[-SLICE:] = todo[-SLICE:], []
        for machine_id, started in reversed(decided):
            known = self._entry(machine_id)
            if known is None or not self._is_told(machine_id, started):
                # Gone meanwhile, or in an operation: the next List decides anew.
                continue
            observed = provider.jumps.certain(machine_id)
            if observed is not None:
                self._jump(name, known.machine, observed)
            elif provider.removals.is_gone(machine_id):
                self._holdings.remove(machine_id)

    def _merge_kept(self, name: str) -> None:
        match self._lists.next_kept(name):
            case Listed() as event:
                self._merge_slice(event)
            case ListEnded() as event:
                self._merge_end(event)

    # Small questions

    def _entry(self, machine_id: str) -> Entry | None:
        try:
            return self._inventory.entry(machine_id)
        except UnknownMachineError:
            return None

    def _holder(self, machine_id: str) -> str | None:
        known = self._entry(machine_id)
        return None if known is None else known.sidecar.provider

    def _is_told(self, machine_id: str, started: int, *, is_get: bool = False) -> bool:
        """Whether an answer that was asked for then can tell where the machine is."""
        return not self._is_busy(machine_id) and not self._is_stale(machine_id, started, is_get=is_get)

    def _is_stale(self, machine_id: str, started: int, *, is_get: bool = False) -> bool:
        """Whether the machine has been written since. A Get is sent by us, after what it is to confirm; of a
        List that was sent in the same moment nobody knows."""
        newest = max(
            self._fleet.state.touched.get(machine_id, started - 1),
            self.state.verifying.get(machine_id, started - 1),
        )
        return newest > started or (newest == started and not is_get)

    def _forget_touched(self) -> None:
        """Drop the times that no answer still to come can be older than."""
        started = [self._lists.oldest_running()]
        for provider in self._providers.values():
            started += provider.rereads.state.asked.values()
            started += (time for _, time in provider.state.todo)
        horizon = min(started)
        touched = self._fleet.state.touched
        for machine_id in [m for m, time in touched.items() if time < horizon]:
            del touched[machine_id]

    def _look_for_stuck(self) -> None:
        machine_ids, has_more = self._stuck.to_check()
        for machine_id in machine_ids:
            if not self._is_busy(machine_id):
                self._providers[self.provider_of(machine_id)].rereads.ask(machine_id)
        self._ctx.timers.at(self._ctx.now + (SECOND if has_more else LOOK_EVERY), Timer.STUCK)

    def _changed(self, before: Machine | None, after: Machine | None) -> None:
        """Follow no machine that is no more."""
        if after is not None:
            return
        assert before is not None
        self.state.verifying.pop(before.id, None)
        for provider in self._providers.values():
            provider.jumps.forget(before.id)
            provider.removals.forget(before.id)
            provider.rereads.forget(before.id)
        for name in self._namesakes.freed(before.id):
            self._providers[name].rereads.want(before.id)


class _Provider:
    """What follows the machines of one provider."""

    def __init__(self, ctx: Context, name: str, is_busy: Callable[[str], bool], state: ProviderState) -> None:
        self.state = state
        self.jumps = Jumps(state.jumps)
        self.removals = Removals(state.removals)
        self.rereads = Rereads(ctx, name, is_busy, state.rereads)
