"""The suite against wrong providers: each in a process that has the mistake planted in it."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, Final
from unittest import mock

from bigfleet_providerkit.conformance.areas import durability, scale, stateful
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS, PROFILES, Lane
from bigfleet_providerkit.conformance.connection import UnreachableError
from bigfleet_providerkit.conformance.options import KINDS, Options
from bigfleet_providerkit.conformance.outcome import Result, Status, Verdict, judge
from bigfleet_providerkit.conformance.report import Report
from bigfleet_providerkit.conformance.runner import Run, Unwatched
from tests.wrong_providers import served
from tests.wrong_providers.nursery import PRELOADED, end_with_parent, forking
from tests.wrong_providers.planting import planted
from tests.wrong_providers.registry import WrongProvider, controls, load

_PROFILES: Final = tuple(profile for profile in PROFILES if profile != "bare-metal")
_PROGRAM: Final = "tests.wrong_providers"
_COMMAND: Final = (
    f"{sys.executable} -m {_PROGRAM} NAME --addr {{addr}} --state {{state}}"
    " --seed-count {seed_count} --metrics-addr 0 --log-level warn --shutdown-window 0s"
    " --reconcile-interval 500ms --quarantine 4s"
)
_LONG: Final = ("X303", "X702", "X703", "B1107")
_PART_S: Final = 600.0
_SETTLE_S: Final = 5.0
"""The fake takes a tenth of a second; waiting longer for a wrong one tells nothing new."""


@dataclass(frozen=True)
class Trial:
    """What the suite has found about one provider."""

    name: str
    results: Mapping[str, Result]
    """By id, of those that were run."""
    seconds: float
    panics: tuple[str, ...] = ()
    """Errors that the kit did not expect: then the mistake is not the one that was meant."""

    @property
    def red(self) -> list[str]:
        return [one for one, result in self.results.items() if result.status is Status.FAILED]

    @property
    def verdict(self) -> Verdict:
        return judge(list(self.results.values()), compat=False, no_vacuous=False).verdict

    def and_then(self, other: "Trial") -> "Trial":
        """Both as one."""
        return Trial(
            self.name,
            {**self.results, **other.results},
            self.seconds + other.seconds,
            tuple(dict.fromkeys((*self.panics, *other.panics))),
        )


@dataclass(frozen=True)
class Part:
    """Ids that one provider is enough for."""

    name: str
    place: str
    """``process`` that may be killed, in view of a ``cluster``, or ``here`` in the process of the suite."""
    ids: tuple[str, ...]

    @property
    def weight(self) -> int:
        """How long it takes, roughly."""
        return (self.place == "process") + len(self.ids) + 20 * sum(one in _LONG for one in self.ids)


def try_all(ids: Mapping[str, Sequence[str]], jobs: int) -> Iterator[Trial]:
    """Run these ids against these wrong providers, so many at once; trials come as they end."""
    parts = [part for name, own in ids.items() for part in _parts(name, own)]
    missing = Counter(part.name for part in parts)
    trials: dict[str, Trial] = {}
    # A mistake is planted in a whole process. These are forked before gRPC runs, which does not survive it.
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_parent) as pool:
        # The long ones first, so that the end is not spent on waiting for one of them.
        weights = {name: sum(part.weight for part in parts if part.name == name) for name in ids}
        running = [pool.submit(_try, part) for part in sorted(parts, key=lambda part: -weights[part.name])]
        for ended in as_completed(running):
            found = ended.result()
            name = found.name
            trials[name] = trials[name].and_then(found) if name in trials else found
            missing[name] -= 1
            if not missing[name]:
                yield trials[name]


def _parts(name: str, ids: Sequence[str]) -> Iterator[Part]:
    chosen = (load() | controls())[name]
    places: dict[tuple[str, Lane], list[str]] = {}
    for one in ids:
        behaviour = BEHAVIOURS[one]
        place = "cluster" if behaviour.option == "readiness_oracle" else "here"
        if chosen.managed or behaviour.lane is Lane.DURABLE:
            place = "process"
        # A lane has a provider of its own: what one leaves behind must not disturb the other.
        places.setdefault((place, behaviour.lane), []).append(one)
    for (place, _), own in places.items():
        yield Part(name, place, tuple(own))


def _try(part: Part) -> Trial:
    chosen = (load() | controls())[part.name]
    started = time.monotonic()
    panics: list[str] = []
    with planted(chosen.plant, panicked=lambda error: panics.append(repr(error))):
        try:
            report = asyncio.run(_run(chosen, part.place, part.ids))
        except UnreachableError as error:
            found = [Result(BEHAVIOURS[one], Status.ERROR, True, str(error)) for one in part.ids]
        else:
            found = [replace(report.result(one), evidence=()) for one in part.ids]
    results = {result.behaviour.id: result for result in found if result.status is not Status.NOT_RUN}
    return Trial(part.name, results, time.monotonic() - started, tuple(dict.fromkeys(panics)))


async def _run(chosen: WrongProvider, place: str, ids: Sequence[str]) -> Report:
    if place == "process":
        with served.machines() as root:
            command = _COMMAND.replace("NAME", chosen.name)
            command += f" --root {root}" if chosen.base == "localproc" else ""
            with forking(_PROGRAM):
                return await _certify(ids, provider_cmd=command)
    if place == "cluster":
        provider = served.fake_in_a_cluster(chosen.knobs)
    elif chosen.base == "localproc":
        provider = served.localproc()
    else:
        provider = served.fake(chosen.knobs)
    async with provider as where:
        return await _certify(ids, target=where.address, **where.options)


async def _certify(ids: Sequence[str], **more: Any) -> Report:
    options = Options(
        **more,
        profiles=_PROFILES,
        select=tuple(ids),
        settle=dict.fromkeys(KINDS, _SETTLE_S),
        parallel=8,
        recovery=served.RECOVERY_S,
        scale_seed=served.SEEDS,
        soak=1.0,
        hundred_thousand=True,
        timeout=_PART_S,
    )
    # What is wrong shows at the first crash and in a small fleet; more of either would only take time.
    with (
        mock.patch.object(stateful, "PROGRAMS", 2),
        mock.patch.object(stateful, "SHRINKS", 0),
        mock.patch.object(durability, "KILLS", 3),
        mock.patch.object(scale, "MANY", served.SEEDS),
        mock.patch.object(scale, "LISTS", 2),
    ):
        return await Run(options, Unwatched()).certify()
