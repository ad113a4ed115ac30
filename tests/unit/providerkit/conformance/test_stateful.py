"""The model of X1201: what it makes of answers that are none."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc import StatusCode as Code

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_providerkit.conformance.areas.stateful import Step, World
from bigfleet_providerkit.conformance.checks import CheckFailed, Trouble
from bigfleet_providerkit.conformance.client import Ack, Reply
from bigfleet_providerkit.conformance.tokens import Tokens
from bigfleet_providerkit.conformance.trial import Trial


def world(*codes: Code) -> World:
    """A world of one machine, whose provider has these answers to Create."""
    answers = iter(codes)

    async def create(machine_id: str, token: Any) -> Ack:
        code = next(answers)
        answer = pb.TransitionAck(operation_id=f"op-{token.sequence}") if code is Code.OK else None
        return Reply(f"Create({machine_id})", code, "", answer, 0.0)

    trial = SimpleNamespace(
        shards=Tokens("run", (), 0).shards,
        can=SimpleNamespace(info=None),
        options=SimpleNamespace(compat=False),
        provider=SimpleNamespace(create=create),
    )
    return World(cast("Trial", trial), ["m1"])


async def test_what_was_not_answered_may_have_happened_and_proves_nothing() -> None:
    for code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
        # While a Create is under way another may be refused, and then the machine is as it was.
        modelled = world(Code.OK, code)
        await modelled.run(Step("create", token=(1, 1)))
        with pytest.raises(Trouble, match="nothing was learnt"):
            await modelled.run(Step("create", token=(1, 2)))


async def test_a_refusal_in_its_place_is_a_finding() -> None:
    with pytest.raises(CheckFailed, match="ABORTED, expected OK: the machine is SPECULATIVE"):
        await world(Code.ABORTED).run(Step("create", token=(1, 1)))
