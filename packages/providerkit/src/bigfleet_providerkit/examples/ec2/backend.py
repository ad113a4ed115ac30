"""Machines that are EC2 instances.

================  ==================================================================================
Create            RunInstances from the launch template, with the operation id as client token
Configure         the binding goes on the instance as tags; stop, new user data, start: the instance
                  boots, runs the bootstrap and tags itself ready
Drain             pods get their grace; stop, empty user data, a new root volume, start; the tags of
                  the binding go last
Delete            TerminateInstances
================  ==================================================================================

EC2 gives user data to a stopped instance only, and what ran on an instance stays on its root volume: hence
the stops, and the new volume. Every step may be cut off and is found as it was left: tags, states and
volumes on EC2 say how far an earlier run came.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bigfleet_base.model import CapacityType
from bigfleet_providerkit.backend import (
    Backend,
    DiscoveredHost,
    Host,
    HostStatus,
    Interruption,
    MachineView,
    Offering,
    Operation,
    PriceUpdate,
)
from bigfleet_providerkit.errors import InsufficientCapacity, NotFound, Retryable, Terminal
from bigfleet_providerkit.examples.ec2 import tags as tag
from bigfleet_providerkit.examples.ec2.api import CAPACITY_CODES, Api, ParameterMismatch
from bigfleet_providerkit.examples.ec2.instances import ENDED, LIVE, Instance, Instances
from bigfleet_providerkit.examples.ec2.nodes import InstanceNodes
from bigfleet_providerkit.examples.ec2.notices import Notices
from bigfleet_providerkit.examples.ec2.prices import Prices
from bigfleet_providerkit.examples.ec2.quota import MARKETS, Quota
from bigfleet_providerkit.examples.ec2.userdata import IDLE, MAX_BLOB_BYTES, user_data
from bigfleet_providerkit.examples.ec2.volumes import Volumes
from bigfleet_providerkit.options import duration

SETTLING_S: Final = 60.0
"""How long after a step of ours a description may still show the state before it."""
_EMPTY_POLL_S: Final = 2.0
_HOOK: Final = "/usr/local/bin/bigfleet-bootstrap"


class Ec2(Backend):
    """An example provider: machines are EC2 instances."""

    readiness = "probe"
    max_blob_bytes = MAX_BLOB_BYTES

    def __init__(
        self,
        name: str,
        api: Api,
        launch_template: str,
        quota: Quota,
        *,
        hook: str = _HOOK,
        kubeconfigs: Path | None = None,
        poll: float = 1.0,
        notice_interval: float = 15.0,
        price_interval: float = 300.0,
    ) -> None:
        self.name = name
        self._api = api
        self._template = _template(launch_template)
        self._quota = quota
        self._hook = hook
        self._nodes = InstanceNodes(kubeconfigs, name)
        self._notice_interval = notice_interval
        self._price_interval = price_interval
        self._instances = Instances(api, name, poll)
        self._volumes = Volumes(api, self._instances, poll)
        self._grace_ends: dict[str, float] = {}
        """By operation: a drain that is tried again gets no second grace."""
        self._moved: dict[str, float] = {}
        """When this process last changed an instance's state."""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--region", default="", help="the EC2 region, for example eu-west-1")
        add("--endpoint-url", metavar="URL", default="", help="of EC2, where it is not the region's own")
        add("--launch-template", metavar="NAME", default="", help="name or id, and :VERSION if need be")
        add("--subnet", action="append", metavar="ID", default=[], help="one a zone; else the default VPC's")
        add("--prices", metavar="FILE", default="", help="JSON object of types and on-demand USD an hour")
        add("--hook", metavar="PATH", default=_HOOK, help="program in the image that joins a cluster")
        add("--kubeconfigs", metavar="DIR", default="", help="kubeconfigs by cluster id, to look at Nodes")
        add("--poll", type=duration, metavar="TIME", default="1s", help="between two looks at all instances")
        add(
            "--notice-interval",
            type=duration,
            metavar="TIME",
            default="15s",
            help="to look for interruptions",
        )
        add("--price-interval", type=duration, metavar="TIME", default="5m", help="to ask for prices")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Backend:
        if not options.region:
            raise ValueError("--region is missing; name the EC2 region, for example eu-west-1")
        if not options.launch_template:
            raise ValueError("--launch-template is missing; it says which image and network instances get")
        if not options.offerings and options.seed_count is None:
            raise ValueError(
                "--offerings is missing; on EC2 every machine costs money, so the quota is yours"
            )
        if options.seed_count is not None and not options.prices:
            raise ValueError("--seed-count spreads slots over the types in --prices, and that is missing")
        folder = Path(options.kubeconfigs).resolve() if options.kubeconfigs else None
        if folder is not None and not folder.is_dir():
            raise ValueError(f"{options.kubeconfigs} (--kubeconfigs) is not a directory")
        api = Api(options.region, options.endpoint_url)
        path = Path(options.prices) if options.prices else None
        return cls(
            options.provider or f"ec2-{options.region}",
            api,
            options.launch_template,
            Quota(api, Prices(api, path), options.subnet, options.seed_count),
            hook=options.hook,
            kubeconfigs=folder,
            poll=options.poll / 1e9,
            notice_interval=options.notice_interval / 1e9,
            price_interval=options.price_interval / 1e9,
        )

    # ---- inventory

    async def offerings(self) -> Sequence[Offering]:
        return await self._quota.offerings(self.standard_offerings)

    async def discover(self) -> Sequence[DiscoveredHost]:
        found = (await self._instances.look()).values()
        return [self._discovered(row) for row in found if row.machine_id and row.state in LIVE]

    async def inspect(self, machine: MachineView) -> HostStatus:
        try:
            found = await self._find(machine)
        except NotFound:
            return HostStatus.GONE
        except Retryable:
            return HostStatus.UNKNOWN
        if found.state in ENDED:
            self._moved.pop(found.id, None)
            return HostStatus.GONE
        if found.state in ("stopping", "stopped"):
            is_settling = time.monotonic() - self._moved.get(found.id, -SETTLING_S) < SETTLING_S
            return HostStatus.UNKNOWN if is_settling else HostStatus.STOPPED
        is_joined = found.tags.get(tag.CLUSTER) == machine.cluster and tag.is_ready(found.tags)
        return HostStatus.BOOTSTRAPPED if is_joined else HostStatus.RUNNING

    async def prices(self) -> AsyncIterator[PriceUpdate]:
        while True:
            await asyncio.sleep(self._price_interval)
            for update in await self._quota.new_prices():
                yield update

    async def interruptions(self) -> AsyncIterator[Interruption]:
        notices = Notices(self._api, self._instances, self.name)
        while True:
            for notice in await notices.fresh():
                yield notice
            await asyncio.sleep(self._notice_interval)

    # ---- one machine

    async def create(self, op: Operation) -> Host:
        ref = await self._launch(op)
        found = await self._reach(ref, "running", *ENDED)
        if found.state in ENDED:
            code = found.reason.rpartition(".")[2]
            text = f"instance {ref} ended while it was launched: {found.reason or 'EC2 does not say why'}"
            raise InsufficientCapacity(text) if code in CAPACITY_CODES else Terminal(text)
        return Host(ref)

    async def configure(self, op: Operation) -> None:
        ref = op.machine.host_ref
        data = user_data(
            op.bootstrap_blob,
            cluster=op.cluster_id,
            operation=op.operation_id,
            machine=op.machine.id,
            provider=self.name,
            region=self._api.region,
            hook=self._hook,
        )
        # First of all: from here on nobody may take the instance for one that serves nobody (P-124).
        await self._tag(ref, tag.binding_tags(op.cluster_id, op.operation_id, op.machine.metadata))
        await self._stop(ref)
        await self._set_user_data(ref, data)
        await self._start(ref)

    async def node_ready(self, op: Operation) -> bool:
        found = await self._instances.get(op.machine.host_ref)
        if found.tags.get(tag.READY) != op.operation_id:
            return False
        return await self._nodes.is_ready(op.cluster_id, op.machine.id)

    async def drain(self, op: Operation) -> None:
        ref = op.machine.host_ref
        if (await self._instances.get(ref)).state in ENDED:
            raise NotFound(f"instance {ref} has ended")
        await self._nodes.cordon(op.cluster_id, op.machine.id)
        await self._wait_for_pods(op)
        # Its data is about to go, so nothing is lost if the system does not get to write it.
        await self._stop(ref, Force=True)
        await self._nodes.remove(op.cluster_id, op.machine.id)
        await self._set_user_data(ref, IDLE)
        await self._volumes.replace_root(await self._instances.get(ref))
        await self._start(ref)
        bound = await self._reach(ref, "running")
        # The cluster goes last: as long as something of it may be here, the tag says so.
        gone = [{"Key": key} for key in tag.passing_tags(bound.tags)]
        if gone:
            await self._api.call("delete_tags", Resources=[ref], Tags=gone)
        await self._tag(ref, {tag.CLUSTER: ""})
        self._grace_ends.pop(op.operation_id, None)

    async def delete(self, op: Operation) -> None:
        machine = op.machine
        found = [row for row in (await self._instances.look()).values() if row.machine_id == machine.id]
        if not found and machine.host_ref:
            found = [await self._instances.get(machine.host_ref)]
        for row in found:
            # Before its instance: a persistent request would launch another one.
            if row.spot_request:
                await self._api.call(
                    "cancel_spot_instance_requests", SpotInstanceRequestIds=[row.spot_request]
                )
            await self._api.call("terminate_instances", InstanceIds=[row.id])
            await self._reach(row.id, *ENDED)
            self._moved.pop(row.id, None)
        await self._volumes.delete_spare(machine.id)

    # ---- steps

    async def _launch(self, op: Operation) -> str:
        machine = op.machine
        marks = tag.as_list(
            {
                "Name": machine.id,
                tag.PROVIDER: self.name,
                tag.MACHINE: machine.id,
                tag.CAPACITY: machine.capacity_type.name,
                tag.OPERATION: op.operation_id,
                tag.CLUSTER: "",
            }
        )
        tagged = ["instance", "volume"]
        if machine.capacity_type is CapacityType.SPOT:
            tagged.append("spot-instances-request")
        subnet = self._quota.subnets.get(machine.zone)
        place = {"SubnetId": subnet} if subnet else {"Placement": {"AvailabilityZone": machine.zone}}
        try:
            launched = await self._api.call(
                "run_instances",
                ClientToken=op.operation_id,
                MinCount=1,
                MaxCount=1,
                LaunchTemplate=self._template,
                InstanceType=machine.instance_type,
                UserData=IDLE.decode(),
                TagSpecifications=[{"ResourceType": kind, "Tags": marks} for kind in tagged],
                **place,
                **MARKETS[machine.capacity_type],
            )
        except ParameterMismatch:
            # Launched before a restart that changed the configuration: it is ours all the same.
            return await self._launched(op.operation_id)
        ref: str = launched["Instances"][0]["InstanceId"]
        self._moved[ref] = time.monotonic()
        return ref

    async def _launched(self, operation_id: str) -> str:
        for row in (await self._instances.look()).values():
            if row.tags.get(tag.OPERATION) == operation_id:
                return row.id
        raise Retryable(f"EC2 has launched an instance for {operation_id} and does not show it yet")

    async def _stop(self, ref: str, **parameters: bool) -> None:
        await self._api.call("stop_instances", InstanceIds=[ref], **parameters)
        self._moved[ref] = time.monotonic()
        await self._reach(ref, "stopped")

    async def _start(self, ref: str) -> None:
        try:
            await self._api.call("start_instances", InstanceIds=[ref])
        except InsufficientCapacity as error:
            raise Terminal(f"EC2 took the place of instance {ref} while it was stopped: {error}") from None
        self._moved[ref] = time.monotonic()

    async def _set_user_data(self, ref: str, data: bytes) -> None:
        await self._api.call("modify_instance_attribute", InstanceId=ref, UserData={"Value": data})

    async def _tag(self, ref: str, tags: Mapping[str, str]) -> None:
        await self._api.call("create_tags", Resources=[ref], Tags=tag.as_list(tags))

    async def _reach(self, ref: str, *states: str) -> Instance:
        """The instance once it is in one of the states; the kit ends a wait that takes too long."""
        while True:
            try:
                found = await self._instances.get(ref)
            except Retryable:
                continue  # throttled, or not shown yet: looks have their own pace
            self._moved[ref] = time.monotonic()
            if found.state in states:
                return found
            if found.state in ENDED:
                raise Terminal(f"instance {ref} has ended: {found.reason or 'EC2 does not say why'}")

    async def _wait_for_pods(self, op: Operation) -> None:
        """Until no evictable pod is left, or the grace is over (P-110, P-111)."""
        now = time.monotonic()
        end = self._grace_ends.setdefault(op.operation_id, now + op.grace_seconds)
        while (left := end - time.monotonic()) > 0:
            if await self._nodes.is_empty(op.cluster_id, op.machine.id):
                return
            await asyncio.sleep(min(left, _EMPTY_POLL_S))

    async def _find(self, machine: MachineView) -> Instance:
        """The machine's instance; by its tag if its launch failed before anyone knew its id."""
        if machine.host_ref:
            return await self._instances.get(machine.host_ref)
        for row in (await self._instances.look()).values():
            if row.machine_id == machine.id:
                return row
        raise NotFound(f"no instance is tagged as {machine.id}")

    def _discovered(self, found: Instance) -> DiscoveredHost:
        market = CapacityType.__members__.get(found.tags.get(tag.CAPACITY, ""), CapacityType.ON_DEMAND)
        price = self._quota.prices.of(found.instance_type, found.zone, market)
        # For an instance whose offering is no longer listed: it is shown until it is drained and deleted.
        like = None if price is None else Offering(found.instance_type, found.zone, market, 0, price)
        return DiscoveredHost(found.machine_id, Host(found.id, binding=tag.read_binding(found.tags)), like)


def _template(given: str) -> dict[str, str]:
    """``NAME``, ``lt-ID``, and either with ``:VERSION``."""
    name, _, version = given.partition(":")
    key = "LaunchTemplateId" if name.startswith("lt-") else "LaunchTemplateName"
    return {key: name, "Version": version or "$Default"}
