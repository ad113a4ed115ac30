"""A run: lanes opened one after the other, ids run in them, everything put away again."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

from grpc import StatusCode as Code

from bigfleet_base.model import MachineState
from bigfleet_base.options import UsageError
from bigfleet_base.telemetry.redact import error_text
from bigfleet_providerkit.conformance import checks
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS, Behaviour, Gate, Lane
from bigfleet_providerkit.conformance.checks import Check, CheckFailed, SkipCapability, SkipFixture, Trouble
from bigfleet_providerkit.conformance.client import Client, state_of
from bigfleet_providerkit.conformance.connection import Tls, UnreachableError
from bigfleet_providerkit.conformance.evidence import Evidence, Latencies
from bigfleet_providerkit.conformance.lanes import open_lane
from bigfleet_providerkit.conformance.options import Options
from bigfleet_providerkit.conformance.outcome import Result, Status, judge
from bigfleet_providerkit.conformance.profiles import derive_profiles
from bigfleet_providerkit.conformance.report import Report
from bigfleet_providerkit.conformance.target import RECLAIM_AFTER_FAILURE_S, Capabilities, Target
from bigfleet_providerkit.conformance.tokens import Tokens, unused_id
from bigfleet_providerkit.conformance.trial import Trial

SLOTS_TO_CONSUME: Final = 120
SLOTS_TO_REUSE: Final = 24
_TOO_LATE: Final = "the run's --timeout was over"


class Progress(Protocol):
    """Who watches a run."""

    def lane(self, lane: Lane, ids: int, about: str) -> None: ...

    def done(self, result: Result) -> None: ...

    def say(self, text: str) -> None: ...


class Unwatched:
    """Nobody does."""

    def lane(self, lane: Lane, ids: int, about: str) -> None:
        """Nothing."""

    def done(self, result: Result) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""


class Run:
    """One run over the catalogue."""

    def __init__(self, options: Options, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._checks = checks.load()
        self._tls = Tls.from_options(options)
        # Epochs of earlier runs with these certificates were of earlier seconds.
        self._tokens = Tokens(secrets.token_hex(4), options.shard_ids, int(time.time()) << 20)
        self._deadline = time.monotonic() + options.timeout
        self._latencies: dict[str, Latencies] = {}
        self._results: dict[str, Result] = {}
        self._capabilities: Capabilities | None = None
        self._problem = ""
        self._left: list[str] = []

    async def certify(self) -> Report:
        """Run everything the options ask for; UnreachableError when there is nobody to ask."""
        started = datetime.now(UTC)
        if self._options.profiles == ("auto",):
            await self._derive_profiles()
        for lane in Lane:
            if self._problem:
                break
            if ids := [b for b in BEHAVIOURS.values() if b.lane is lane and self._is_to_run(b)]:
                await self._run_lane(lane, ids)
        results = [self._results.get(b.id) or self._untouched(b) for b in BEHAVIOURS.values()]
        judgement = judge(results, compat=self._options.compat, no_vacuous=self._options.no_vacuous)
        return Report(
            options=self._options,
            started=started,
            seconds=(datetime.now(UTC) - started).total_seconds(),
            results=results,
            judgement=judgement,
            capabilities=self._capabilities,
            latencies=self._latencies,
            problem=self._problem,
            left=tuple(self._left),
        )

    # What is to run

    def _is_required(self, behaviour: Behaviour) -> bool:
        if behaviour.deprecated or (behaviour.is_ours and self._options.compat):
            return False
        if behaviour.option and not getattr(self._options, behaviour.option, ""):
            return False
        return not set(behaviour.profiles).isdisjoint(self._options.profiles)

    def _is_to_run(self, behaviour: Behaviour) -> bool:
        return (
            not set(behaviour.profiles).isdisjoint(self._options.profiles)
            and self._options.selects(behaviour.id)
            and behaviour.id in self._checks
        )

    def _untouched(self, behaviour: Behaviour) -> Result:
        """The result of an id that no lane has come to."""
        if behaviour.id not in self._checks:
            return self._result(behaviour, Status.NOT_IMPLEMENTED, "the suite has no check for it")
        if set(behaviour.profiles).isdisjoint(self._options.profiles):
            return self._result(
                behaviour, Status.NOT_RUN, f"not in profile {','.join(self._options.profiles)}"
            )
        if self._options.selects(behaviour.id):
            return self._result(behaviour, Status.NOT_RUN, self._problem)
        return self._result(behaviour, Status.NOT_RUN, "left out by --select or --exclude")

    # Lanes

    async def _derive_profiles(self) -> None:
        opened = await open_lane(Lane.MAIN, self._options, self._tls)
        try:
            profiles = await derive_profiles(opened, self._client(opened))
        except (CheckFailed, Trouble) as error:
            raise UnreachableError(f"{opened} could not be asked what it has: {error}") from error
        finally:
            await opened.close()
        self._options = replace(self._options, profiles=profiles)

    async def _run_lane(self, lane: Lane, ids: Sequence[Behaviour]) -> None:
        if time.monotonic() >= self._deadline:
            self._finish_all(lane, ids, Status.NOT_RUN, _TOO_LATE)
            return
        try:
            opened = await open_lane(lane, self._options, self._tls)
            try:
                if await self._prepare(lane, opened, ids):
                    self._progress.lane(lane, len(ids), f"against {opened.connection.address}")
                    await self._run_ids(lane, opened, ids)
                    await self._leave(lane, opened)
            finally:
                await opened.close()
        except SkipFixture as skip:
            self._finish_all(lane, ids, Status.SKIPPED_FIXTURE, str(skip))
        except (UnreachableError, Trouble) as error:
            # What other lanes have found is worth a report.
            if not self._results:
                raise UnreachableError(str(error)) from error
            self._finish_all(lane, ids, Status.ERROR, str(error))

    async def _leave(self, lane: Lane, opened: Target) -> None:
        """Return what checks could not: nobody looks for hosts any more when their provider has ended."""
        # The hosts of the reference end with it.
        if not self._options.reclaim or opened.hooks == "reference":
            return
        try:
            await opened.revive()
            client = self._client(opened)
            if not (machines := await opened.slots.unreturned(client)):
                return
            failed = sum(state_of(machine) is MachineState.FAILED for machine in machines)
            self._progress.say(
                f"{lane} lane: returning {len(machines)} machines, {failed} of them once they are repaired"
            )
            await opened.slots.put_away(client, [machine.id for machine in machines], self._deadline)
            left = await opened.slots.unreturned(client)
            self._left += [f"{one.id} ({state_of(one).name} in the {lane} lane)" for one in left]
        except (CheckFailed, Trouble, UnreachableError) as error:
            self._left.append(f"whatever the {lane} lane has used: {error}")

    async def _prepare(self, lane: Lane, opened: Target, ids: Sequence[Behaviour]) -> bool:
        """Find out what the provider can do, and whether it has machines enough to begin with."""
        free = await opened.slots.count()
        if free:
            opened.capabilities = await self._probe(opened)
        reuses = self._options.reclaim and opened.capabilities.delete
        needed = self._options.min_slots or (SLOTS_TO_REUSE if reuses else SLOTS_TO_CONSUME)
        if not free:
            problem = f"{opened} has no free machine: it lists no SPECULATIVE one; give it offerings or seeds"
        elif lane is Lane.MAIN and free < needed:
            problem = (
                f"{opened} has {free} free machines and {needed} are needed: add some or lower --min-slots"
            )
        else:
            return True
        # In the first lane that is all there is to say.
        self._problem = "" if self._results else problem
        self._finish_all(lane, ids, Status.SKIPPED_FIXTURE, problem)
        return False

    async def _probe(self, opened: Target) -> Capabilities:
        client = self._client(opened)
        if (await client.drain(unused_id("ghost"))).code is Code.PERMISSION_DENIED:
            raise UsageError(f"{opened} checks who calls: give a --shard-id that it takes, with its --cert")
        if opened.hooks == "reference":
            return await opened.probe(client)
        # Asking is free, walking a machine is not: what one lane found out holds for the others.
        if self._capabilities is None or self._capabilities.info is not None:
            self._capabilities = await opened.probe(client)
        return self._capabilities

    def _client(self, opened: Target) -> Client:
        return Client(opened.connection, self._tokens, Evidence(self._latencies))

    # Ids

    async def _run_ids(self, lane: Lane, opened: Target, ids: Sequence[Behaviour]) -> None:
        shared = [b for b in ids if not self._checks[b.id].alone]
        # Restarts end everyone's calls, and the shard ids of certificates have one order of tokens.
        workers = 1 if lane is Lane.DURABLE or self._tokens.checks_identity else self._options.parallel
        if workers == 1:
            shared = []
        total = await opened.slots.count()
        waiting = list(shared)

        async def work() -> None:
            while waiting:
                behaviour = waiting.pop(0)
                await opened.slots.reserve(behaviour.slots, total)
                try:
                    await self._run_id(opened, behaviour)
                finally:
                    await opened.slots.release(behaviour.slots)

        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())
        for behaviour in ids:
            if behaviour not in shared:
                await self._run_id(opened, behaviour)

    async def _run_id(self, opened: Target, behaviour: Behaviour) -> None:
        if time.monotonic() >= self._deadline:
            self._finish(self._result(behaviour, Status.NOT_RUN, _TOO_LATE))
            return
        if lacking := _lacking(behaviour.gate, opened.capabilities):
            self._finish(self._result(behaviour, Status.SKIPPED_CAPABILITY, lacking))
            return
        try:
            await opened.revive()
        except UnreachableError as error:
            self._finish(self._result(behaviour, Status.ERROR, str(error)))
            return
        trial = Trial(behaviour, opened, self._tokens, Evidence(self._latencies))
        started = time.monotonic()
        status, reason = await self._try(self._checks[behaviour.id], trial)
        if status is Status.ERROR and opened.managed is not None and not opened.managed.is_running:
            reason += f"; the provider's process has ended{opened.managed.last_words()}"
        seconds = time.monotonic() - started
        returned = await self._put_away(trial, failed=status in (Status.FAILED, Status.ERROR))
        self._finish(
            self._result(
                behaviour,
                status,
                reason,
                lenient=trial.lenient_because,
                notes=tuple(trial.notes),
                seconds=seconds,
                evidence=trial.evidence.entries(),
                slots_taken=len(trial.taken),
                slots_returned=returned,
            )
        )

    async def _try(self, check: Check, trial: Trial) -> tuple[Status, str]:
        limit = asyncio.timeout(max(0.0, self._deadline - time.monotonic()))
        try:
            async with limit:
                await check.body(trial)
        except Exception as error:
            if limit.expired():
                return Status.ERROR, "cut off: the run's --timeout was over"
            return _ending(error)
        if trial.vacuous_because:
            return Status.VACUOUS, trial.vacuous_because
        return Status.PASSED, ""

    async def _put_away(self, trial: Trial, *, failed: bool) -> int:
        """Return what the check has used; a provider that just failed it is not waited for as long."""
        slots = trial.target.slots
        try:
            if not self._options.reclaim or not trial.taken:
                return 0
            limit = RECLAIM_AFTER_FAILURE_S if failed else None
            client = Client(trial.target.connection, self._tokens, trial.evidence)
            client.last_kind = trial.provider.last_kind
            return await slots.reclaim(client, list(dict.fromkeys(trial.taken)), limit)
        finally:
            slots.drop(trial.taken)

    # Results

    def _result(self, behaviour: Behaviour, status: Status, reason: str = "", **more: object) -> Result:
        result = Result(behaviour, status, self._is_required(behaviour), reason)
        if status in (Status.FAILED, Status.ERROR):
            result = replace(result, reproduce=self._options.reproduction(behaviour.id))
        return replace(result, **more)  # type: ignore[arg-type]  # named fields of Result

    def _finish(self, result: Result) -> None:
        self._results[result.behaviour.id] = result
        self._progress.done(result)

    def _finish_all(self, lane: Lane, ids: Sequence[Behaviour], status: Status, reason: str) -> None:
        self._progress.lane(lane, len(ids), f"{status}: {reason}")
        for behaviour in ids:
            self._results[behaviour.id] = self._result(behaviour, status, reason)


def _lacking(gate: Gate, capabilities: Capabilities) -> str:
    """The evidence that the provider lacks what the gate asks for; empty if it does not."""
    if gate is Gate.DELETE and not capabilities.delete:
        return capabilities.evidence["delete"]
    if gate is Gate.CURSOR and not capabilities.cursor:
        return capabilities.evidence["cursor"]
    return ""


def _ending(error: Exception) -> tuple[Status, str]:
    """What an exception that ended a check makes of it."""
    match error:
        case ExceptionGroup():
            return _ending(error.exceptions[0])
        case CheckFailed():
            return Status.FAILED, str(error)
        case SkipCapability():
            return Status.SKIPPED_CAPABILITY, str(error)
        case SkipFixture():
            return Status.SKIPPED_FIXTURE, str(error)
        case Trouble() | UnreachableError():
            return Status.ERROR, str(error)
    return Status.ERROR, f"{error_text(error)} (in {_place(error)})"


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "nowhere"
    code = trace.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}"
