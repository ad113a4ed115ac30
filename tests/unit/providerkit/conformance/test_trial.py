"""What a check is told of the provider that it runs against."""

from dataclasses import replace
from typing import cast

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS
from bigfleet_providerkit.conformance.connection import Connection
from bigfleet_providerkit.conformance.evidence import Evidence
from bigfleet_providerkit.conformance.options import Options
from bigfleet_providerkit.conformance.target import Target
from bigfleet_providerkit.conformance.tokens import Tokens
from bigfleet_providerkit.conformance.trial import Trial
from tests.support.rules import rule


@rule("conformance.X1004")
def test_only_fault_hooks_make_an_unknown_timeout_short() -> None:
    target = Target(cast("Connection", None), Options(target="nobody:1"))
    trial = Trial(BEHAVIOURS["X1004"], target, Tokens("run", (), 1), Evidence({}))
    assert trial.timeout("create") == 15.0, "as long as any transition may take"
    target.hooks = "target"
    assert trial.timeout("create") == 2.0, "as --transition-timeout says"
    told = info_pb.DescribeResponse(timeout_seconds={"create": 7.0})
    target.capabilities = replace(target.capabilities, info=told)
    assert trial.timeout("create") == 7.0
