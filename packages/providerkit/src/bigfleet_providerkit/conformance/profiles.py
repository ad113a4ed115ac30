"""``--profile auto``: what a provider can be certified for."""

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.checks import SkipFixture
from bigfleet_providerkit.conformance.client import Client
from bigfleet_providerkit.conformance.target import Target


async def derive_profiles(on: Target, client: Client) -> tuple[str, ...]:
    """Everything that the provider has and that this run can show."""
    options = on.options
    try:
        found = await on.probe(client)
    except SkipFixture:
        return ("core",)
    machines = expect.ok(await client.list()).machines
    profiles = ["core", "cloud" if found.delete else "bare-metal"]
    if any(machine.capacity_type == pb.CAPACITY_TYPE_SPOT for machine in machines):
        profiles.append("spot")
    if options.fault_mode != "off" and (
        options.provider_cmd or options.fault_mode == "reference" or on.hooks
    ):
        profiles.append("fault")
    if "{state}" in options.provider_cmd:
        profiles.append("durable")
    if "{seed_count}" in options.provider_cmd or len(machines) >= options.scale_seed:
        profiles.append("scale")
    return tuple(profiles)
