"""X601: a machine is Configured only once its node is Ready, by the cluster's own word (provider.md §9)."""

import asyncio
import json
from typing import Any, Final

from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.checks import SkipFixture, Trouble, check
from bigfleet_providerkit.conformance.client import CLUSTER, state_of
from bigfleet_providerkit.conformance.trial import Trial

_WATCHED_S: Final = 1.0
_READY: Final = {
    "type": "Ready",
    "status": "True",
    "reason": "Conformance",
    "message": "made Ready by the suite",
}


@check("X601")
async def configured_means_ready(t: Trial) -> None:
    if not t.options.readiness_oracle:
        raise SkipFixture("needs --readiness-oracle: the API server of cluster conformance-a")
    machine_id = await t.idle()
    nodes = Nodes(t.options.readiness_oracle)
    await nodes.get(machine_id)
    try:
        expect.ok(await t.provider.configure(machine_id, CLUSTER))
        end = asyncio.get_running_loop().time() + _WATCHED_S
        while asyncio.get_running_loop().time() < end:
            if await _is_honest(t, nodes, machine_id):
                break
            await asyncio.sleep(t.options.poll)
        # The node of a machine without a kubelet is ours to make Ready.
        if not is_ready(await nodes.get(machine_id)):
            await nodes.make_ready(machine_id)
        await t.settle(machine_id, S.CONFIGURED)
        await _is_honest(t, nodes, machine_id)
    finally:
        await nodes.delete(machine_id)


class Nodes:
    """The Nodes of a cluster; a machine's has the machine's name."""

    def __init__(self, cluster: str) -> None:
        """``cluster`` is the URL of an API server, or a kubeconfig."""
        self._where = f"--{'server' if '://' in cluster else 'kubeconfig'}={cluster}"

    async def get(self, name: str) -> dict[str, Any] | None:
        """The Node, if there is one."""
        found = await self._kubectl("get", "node", name, "--ignore-not-found", "--output=json")
        node: dict[str, Any] | None = json.loads(found) if found.strip() else None
        return node

    async def make_ready(self, name: str) -> None:
        """Let the Node be Ready, whether it is there already or not."""
        if await self.get(name) is None:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            await self._kubectl("create", "--filename=-", given=json.dumps(node))
        patch = json.dumps({"status": {"conditions": [_READY]}})
        await self._kubectl("patch", "node", name, "--subresource=status", f"--patch={patch}")

    async def delete(self, name: str) -> None:
        await self._kubectl("delete", "node", name, "--ignore-not-found", "--wait=false")

    async def _kubectl(self, *arguments: str, given: str = "") -> str:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                "kubectl", self._where, *arguments, stdin=pipe, stdout=pipe, stderr=pipe
            )
        except FileNotFoundError:
            raise SkipFixture("--readiness-oracle needs kubectl, and it is not installed") from None
        output, complaint = await process.communicate(given.encode())
        if process.returncode != 0:
            said = " ".join(complaint.decode(errors="replace").split())[:300]
            raise Trouble(f"kubectl {arguments[0]} in the cluster of --readiness-oracle failed: {said}")
        return output.decode()


def is_ready(node: dict[str, Any] | None) -> bool:
    conditions = (node or {}).get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def _is_honest(t: Trial, nodes: Nodes, machine_id: str) -> bool:
    """Whether the machine is Configured, which its node must bear out."""
    machine = await t.get(machine_id)
    expect.in_state(machine, S.CONFIGURING, S.CONFIGURED)
    # Looked at second: a node that turns Ready meanwhile does nobody wrong.
    if state_of(machine) is not S.CONFIGURED:
        return False
    node = await nodes.get(machine_id)
    seen = "is not Ready" if node else "does not exist"
    expect.that(is_ready(node), f"machine {machine_id} is CONFIGURED, and its node {seen}")
    return True
