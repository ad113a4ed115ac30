"""Providers whose records do not say what a shard must know of a machine."""

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong


@wrong(breaks="P-90", caught_by="B801 B1101")
def instance_types_are_missing(kit: Kit) -> None:
    """Spot machines have no instance type of their own."""

    def change(machine: pb.Machine) -> None:
        if machine.capacity_type == pb.CAPACITY_TYPE_SPOT:
            machine.instance_type = ""

    kit.records(change)


@wrong(breaks="P-90", caught_by="B801")
def labels_repeat_fields(kit: Kit) -> None:
    """The zone is a label, too, under its bare name."""

    def change(machine: pb.Machine) -> None:
        machine.labels["zone"] = machine.zone

    kit.records(change)


@wrong(breaks="P-91", caught_by="B802 B1101")
def prices_are_not_numbers(kit: Kit) -> None:
    """A price that nobody knows is NaN."""

    def change(machine: pb.Machine) -> None:
        machine.price_per_hour = float("nan")

    kit.records(change)


@wrong(breaks="P-92", caught_by="B802 B1101")
def spot_is_never_interrupted(kit: Kit) -> None:
    """Spot machines have an interruption probability of 0."""

    def change(machine: pb.Machine) -> None:
        machine.interruption_probability = 0.0

    kit.records(change)


@wrong(breaks="P-93", caught_by="X801")
def unknown_prices_are_zero(kit: Kit) -> None:
    """On-demand machines cost nothing."""

    def change(machine: pb.Machine) -> None:
        if machine.capacity_type == pb.CAPACITY_TYPE_ON_DEMAND:
            machine.price_per_hour = 0.0

    kit.records(change)


@wrong(breaks="P-94", caught_by="X803")
def probabilities_are_monthly(kit: Kit) -> None:
    """The reclaim rate of a month is published as an hour's."""

    def change(machine: pb.Machine) -> None:
        if machine.capacity_type == pb.CAPACITY_TYPE_SPOT:
            machine.interruption_probability = 0.125 if machine.zone == "zone-a" else 0.025

    kit.records(change)


@wrong(breaks="P-96", caught_by="X804")
def notices_are_not_listed(kit: Kit) -> None:
    """That a machine is about to be taken away is shown to those who ask for it, and not by List."""

    def change(machine: pb.Machine) -> None:
        machine.interruption_probability = min(machine.interruption_probability, 0.05)

    kit.listed(change)


@wrong(breaks="P-96", caught_by="X804")
def notices_outlive_their_host(kit: Kit) -> None:
    """A deleted machine is as likely to be taken away as its last host was."""
    noticed: set[str] = set()

    def change(machine: pb.Machine) -> None:
        if machine.interruption_probability == 0.99:
            noticed.add(machine.id)
        elif machine.id in noticed:
            machine.interruption_probability = 0.99

    kit.records(change)


@wrong(breaks="7", caught_by="B804")
def quantities_are_words(kit: Kit) -> None:
    """What a machine has is written for people."""

    def change(machine: pb.Machine) -> None:
        for resource in machine.resources.resources:
            machine.resources.resources[resource] += " or so"

    kit.records(change)


@wrong(breaks="P-97", caught_by="B805")
def the_host_is_of_whoever_asks(kit: Kit) -> None:
    """Get and List name different providers of one host."""

    def change(machine: pb.Machine) -> None:
        if machine.HasField("host"):
            machine.host.provider += "-cache"

    kit.listed(change)


@wrong(breaks="P-90", caught_by="B806 B1101")
def zones_are_optional(kit: Kit) -> None:
    """Machines have no zone."""

    def change(machine: pb.Machine) -> None:
        machine.zone = ""

    kit.records(change)


@wrong(breaks="7", caught_by="X802")
def a_host_decides_its_zone(kit: Kit) -> None:
    """A machine moves to another zone when its host comes up."""

    def change(machine: pb.Machine) -> None:
        if machine.HasField("host"):
            machine.zone = "zone-of-the-host"

    kit.records(change)


@wrong(breaks="P-98", caught_by="B807")
def the_host_outlives_delete(kit: Kit) -> None:
    """A deleted machine still shows the host it had."""
    hosts: dict[str, pb.HostRef] = {}

    def change(machine: pb.Machine) -> None:
        if machine.HasField("host"):
            hosts[machine.id] = pb.HostRef(provider=machine.host.provider, ref=machine.host.ref)
        elif machine.state == pb.MACHINE_STATE_SPECULATIVE and machine.id in hosts:
            machine.host.CopyFrom(hosts[machine.id])

    kit.records(change)


@wrong(breaks="P-06", caught_by="B803")
def healthy_machines_have_errors(kit: Kit) -> None:
    """last_error of a bound machine tells that all is well."""

    def change(machine: pb.Machine) -> None:
        if machine.state == pb.MACHINE_STATE_CONFIGURED:
            machine.last_error = "none"

    kit.records(change)


@wrong(breaks="7", caught_by="B806 B1101")
def capacity_types_are_its_own(kit: Kit) -> None:
    """On-demand machines have a capacity type that nobody else knows."""

    def change(machine: pb.Machine) -> None:
        if machine.capacity_type == pb.CAPACITY_TYPE_ON_DEMAND:
            machine.capacity_type = 9  # type: ignore[assignment]  # no number of the enum

    kit.records(change)
