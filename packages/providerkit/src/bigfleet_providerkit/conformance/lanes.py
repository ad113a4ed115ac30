"""Opening lanes: the provider that a lane's ids run against, found or started."""

import sys
from collections.abc import Sequence
from typing import Final

from bigfleet_providerkit.conformance.catalogue import Lane
from bigfleet_providerkit.conformance.checks import SkipFixture
from bigfleet_providerkit.conformance.connection import Connection, Tls, UnreachableError
from bigfleet_providerkit.conformance.managed import Managed
from bigfleet_providerkit.conformance.options import Options
from bigfleet_providerkit.conformance.target import Target

MAIN_SEEDS: Final = 256
LANE_SEEDS: Final = 64
_FAULT_HOOKS: Final = ("--fault-hooks",)
_REFERENCE: Final = (
    f"{sys.executable} -m bigfleet_providerkit.fake"
    " --addr {addr} --seed-count {seed_count} --metrics-addr 0"
)


async def open_lane(lane: Lane, options: Options, tls: Tls | None) -> Target:
    """A provider for the lane; SkipFixture when the run has none, UnreachableError when nobody answers."""
    if lane is Lane.FAULT and options.fault_mode == "off":
        raise SkipFixture("--fault-mode is off")
    if lane is Lane.FAULT and options.fault_mode == "reference":
        # Ours, on this machine: it has nothing to do with the certificates of the provider under test.
        return await _boot(options, _REFERENCE, LANE_SEEDS, None, _FAULT_HOOKS, hooks="reference")
    if options.target:
        return await _reach(lane, options, tls)
    command = options.provider_cmd
    match lane:
        case Lane.MAIN:
            return await _boot(options, command, MAIN_SEEDS, tls)
        case Lane.SCALE:
            return await _boot(options, command, options.scale_seed, tls)
        case Lane.FAULT:
            return await _boot_with_hooks(options, tls)
        case Lane.DURABLE:
            if "{state}" not in command:
                raise SkipFixture(
                    "restarts need {state} in --provider-cmd: where the provider keeps its store"
                )
            try:
                return await _boot_with_hooks(options, tls)
            except SkipFixture:
                return await _boot(options, command, LANE_SEEDS, tls)


async def _reach(lane: Lane, options: Options, tls: Tls | None) -> Target:
    if lane is Lane.DURABLE:
        raise SkipFixture("restarts need --provider-cmd: a provider the suite may kill")
    target = Target(Connection(options.target, tls), options)
    try:
        await target.connection.require_provider()
        info = await target.describe()
        if (info is not None and info.fault_hooks) or await target.slots.has_faulty():
            target.hooks = "target"
        if lane is Lane.FAULT and not target.hooks:
            raise SkipFixture("the target has no fault hooks: start it with --fault-hooks")
    except BaseException:
        await target.close()
        raise
    return target


async def _boot_with_hooks(options: Options, tls: Tls | None) -> Target:
    try:
        return await _boot(options, options.provider_cmd, LANE_SEEDS, tls, _FAULT_HOOKS, hooks="target")
    except UnreachableError as error:
        if options.fault_mode == "hooks":
            raise
        raise SkipFixture(f"it does not start with --fault-hooks: {error}") from error


async def _boot(
    options: Options,
    command: str,
    seeds: int,
    tls: Tls | None,
    extra: Sequence[str] = (),
    *,
    hooks: str = "",
) -> Target:
    managed = Managed(command, seeds, extra, tls)
    try:
        connection = Connection(await managed.boot(), tls)
    except BaseException:
        await managed.stop()
        raise
    target = Target(connection, options, managed, hooks)
    try:
        await connection.require_provider()
    except BaseException:
        await target.close()
        raise
    return target
