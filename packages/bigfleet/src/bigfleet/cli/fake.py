"""The fake provider inside a shard's process, when no provider's address is given (shard.md §17.1)."""

import argparse
import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bigfleet.cli.options import UsageError, duration
from bigfleet.cli.shard import Seeds
from bigfleet_base.model import CapacityType, QuantityError, format_quantity, parse_quantity
from bigfleet_base.model.quantity import prints_binary
from bigfleet_base.telemetry import Log, Logs

if TYPE_CHECKING:
    from bigfleet_providerkit.backend import Offering
    from bigfleet_providerkit.fake import FakeBackend, Knobs

LATENCY_VARIABLE: Final = "BIGFLEET_FAKE_CREATE_LATENCY"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of machine to be seeded, and how often among the machines."""

    instance_type: str
    zone: str
    size: Mapping[str, str]
    weight: int


@asynccontextmanager
async def fake_provider(seeds: Seeds, logs: Logs, environment: Mapping[str, str]) -> AsyncIterator[str]:
    """Serve a seeded fake on the loopback, the way every other provider is reached; gives its address."""
    from bigfleet_providerkit.fake import FakeBackend
    from bigfleet_providerkit.fake.server import FakeServer
    from bigfleet_providerkit.process import Serving
    from bigfleet_providerkit.settings import Settings

    log = logs.logger("provider", provider="fake")
    offerings, knobs = _stock(seeds)
    backend = FakeBackend(_with_latency(knobs, environment.get(LATENCY_VARIABLE, ""), log), offerings)
    settings = Settings(provider="fake", reconcile_interval=_RECONCILE_NS)
    # Nothing of a fake outlives this process, so there is nothing to wait for at its end (P2).
    server = FakeServer(backend, settings, Serving(shutdown_window=0), log)
    tasks: list[asyncio.Task[None]] = []
    try:
        await server.start()
        if seeds.failures_per_s:
            tasks.append(asyncio.ensure_future(_break_machines(backend, seeds.failures_per_s)))
        if seeds.shed_at_s and 0 < seeds.shed_to < 1:
            tasks.append(asyncio.ensure_future(_shed(backend, seeds.shed_at_s, seeds.shed_to)))
        yield server.address
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()


def check_seeds(seeds: Seeds) -> None:
    """Refuse what the fake could not begin with."""
    from bigfleet_providerkit.offerings import OfferingsError, check_offerings

    offerings, _ = _stock(seeds)
    try:
        check_offerings(offerings)
    except OfferingsError as error:
        raise UsageError(f"the fake provider cannot begin like this: {error}") from error


def clusters(seeds: Seeds) -> Iterator[str]:
    """The clusters that this shard's machines serve from the start."""
    for number in range(seeds.cluster_total):
        if number % seeds.cluster_stride == seeds.ordinal % seeds.cluster_stride:
            yield f"kwok-cluster-{number}"


def read_archetypes(path: Path) -> list[Kind]:
    """The kinds of machine that a catalogue's workloads run on (scale.md §4), from its JSON form."""
    try:
        document = json.loads(path.read_bytes())
        kinds = [
            Kind(
                str(instance_type),
                str(zone),
                {str(name): str(amount) for name, amount in _resources(row).items()},
                int(row.get("weight", 1)),
            )
            for row in document
            for instance_type in row["instanceTypes"]
            for zone in row.get("zones", _ZONES)
        ]
    except OSError as error:
        raise UsageError(f"cannot read {path} (--archetypes): {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"{path} (--archetypes) is not a JSON array of objects with instanceTypes, weight and resources"
            f" (or sizeBuckets): {type(error).__name__}: {error}"
        ) from error
    if not kinds:
        raise UsageError(f"{path} (--archetypes) names no kind of machine")
    for kind in kinds:
        if kind.weight < 1:
            raise UsageError(
                f"{path} (--archetypes): the weight of {kind.instance_type!r} is {kind.weight}; give a whole"
                " number of at least 1, or leave the archetype out"
            )
    return list({(kind.instance_type, kind.zone): kind for kind in kinds}.values())


def _resources(row: Mapping[str, Any]) -> Mapping[str, object]:
    resources: Mapping[str, object] = (
        row["resources"] if "resources" in row else row["sizeBuckets"][0]["resources"]
    )
    return resources


def _stock(seeds: Seeds) -> "tuple[list[Offering], Knobs]":
    """Tiers as the reference seeds them: owned machines that exist, dearer ones and riskier ones that can."""
    from bigfleet_providerkit.backend import Binding, Offering
    from bigfleet_providerkit.fake import Knobs, Preseed

    kinds = read_archetypes(Path(seeds.archetypes)) if seeds.archetypes else _PLAIN
    bound = [Binding(name, {}) for name in clusters(seeds) for _ in range(seeds.configured_per_cluster)]
    offerings: list[Offering] = []
    preseed: list[Preseed] = []

    def offer(kind: Kind, capacity_type: CapacityType, count: int, price: float, risk: float) -> None:
        if count:
            offerings.append(
                Offering(
                    kind.instance_type,
                    kind.zone,
                    capacity_type,
                    count,
                    price,
                    risk,
                    allocatable=_scaled(kind.size, seeds.density),
                    resources=kind.size,
                )
            )

    taken = 0
    shares = zip(
        kinds,
        _split(seeds.idle, kinds),
        _split(len(bound), kinds),
        _split(seeds.speculative, kinds),
        _split(seeds.spot, kinds),
        strict=True,
    )
    for kind, idle, configured, speculative, spot in shares:
        offer(kind, CapacityType.BARE_METAL, idle + configured, 0.0, 0.0)
        offer(kind, CapacityType.ON_DEMAND, speculative, 1.0, 0.05)
        offer(kind, CapacityType.SPOT, spot, 0.3, 0.30)
        if idle + configured:
            selector = f"{kind.instance_type}/{kind.zone}/bare_metal"
            preseed.append(Preseed(selector, idle, bound[taken : taken + configured]))
            taken += configured
    return offerings, Knobs(preseed=preseed)


def _split(count: int, kinds: Sequence[Kind]) -> list[int]:
    """So many machines over the kinds, in proportion to their weights, none lost to rounding."""
    total = sum(kind.weight for kind in kinds)
    shares, before, weights = [], 0, 0
    for kind in kinds:
        weights += kind.weight
        upto = count * weights // total
        shares.append(upto - before)
        before = upto
    return shares


def _scaled(size: Mapping[str, str], times: int) -> dict[str, str]:
    try:
        return {
            name: format_quantity(parse_quantity(amount) * times, binary=prints_binary(name), largest="G")
            for name, amount in size.items()
        }
    except QuantityError as error:
        raise UsageError(f"--archetypes: {error}") from None


def _with_latency(knobs: "Knobs", text: str, log: Log) -> "Knobs":
    from dataclasses import replace

    from bigfleet_providerkit.fake import Latency

    if not text:
        return knobs
    try:
        latency = Latency("constant", duration(text))
    except argparse.ArgumentTypeError as error:
        log.warn(f"{LATENCY_VARIABLE} is not used", err=error)
        return knobs
    return replace(knobs, latency={**knobs.latency, "create": latency})


async def _break_machines(backend: "FakeBackend", per_second: float) -> None:
    """Configured machines break as a Poisson process."""
    dice = random.Random()  # noqa: S311  # a fake's dice
    due = dice.expovariate(per_second)
    while True:
        await asyncio.sleep(_TICK_S)
        due -= _TICK_S
        while due <= 0:
            due += dice.expovariate(per_second)
            serving = [
                host for host in backend.substrate.hosts.values() if host.cluster and not host.is_stopped
            ]
            if not serving:
                due = dice.expovariate(per_second)
                break
            backend.substrate.fail_machine(dice.choice(serving).machine_id, time.monotonic_ns())


async def _shed(backend: "FakeBackend", at_s: float, kept: float) -> None:
    """The pool of slots shrinks; machines that exist stay."""
    from bigfleet_providerkit.offerings import check_offerings

    await asyncio.sleep(at_s)
    substrate = backend.substrate
    used = {host.machine_id for host in substrate.hosts.values()}
    for offer in check_offerings(substrate.offerings).values():
        if offer.shape.capacity_type is CapacityType.BARE_METAL:
            continue
        # From the end, where an offering that counts fewer machines loses them.
        for index in reversed(range(math.ceil(offer.count * kept), offer.count)):
            if offer.machine_id(index) in used:
                break
            substrate.remove(offer.machine_id(index))


_ZONES: Final = ("zone-a", "zone-b", "zone-c")
_PLAIN: Final = [Kind("m6i.large", zone, {"cpu": "2", "memory": "8Gi", "pods": "110"}, 1) for zone in _ZONES]
_TICK_S: Final = 1.0
_RECONCILE_NS: Final = 5 * 10**9
"""How often the fake looks at its hosts: broken ones show soon enough to watch."""
