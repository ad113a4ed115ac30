"""What is told of operations: to the audit log (shard.md R6) and to people (§18.1)."""

from bigfleet.engine.actions import Action
from bigfleet.shard.core.calls import grace_s
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.effects import AuditValue, LogLevel
from bigfleet.shard.core.events import Failure
from bigfleet.shard.core.operations import Operation
from bigfleet.shard.core.outcomes import Outcome
from bigfleet_base.model.lifecycle import Rpc


class Journal:
    """Lines about operations, each with what identifies it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def audit(self, what: str, op: Operation, **fields: AuditValue) -> None:
        self._ctx.audit(
            what,
            op_id=f"{self._ctx.settings.epoch}-{op.number}",
            kind=op.action.kind.value,
            machine_id=op.machine_id,
            cluster=op.cluster or None,
            **fields,
        )

    def emitted(self, op: Operation) -> None:
        """Why an action was decided; to be told before the provider hears of it."""
        action = op.action
        fingerprint, group, priority = served(action)
        self.audit(
            "action.emitted",
            op,
            need_fp=fingerprint,
            group=group,
            priority=priority,
            reason=action.reason.value,
            grace_s=grace_s(op) if op.rpc is Rpc.DRAIN else None,
            cost=action.cost,
            runner_up_cost=action.runner_up_cost,
            victim_score=action.victim_score,
        )

    def warn(self, msg: str, op: Operation) -> None:
        self._ctx.log(
            LogLevel.WARN, msg, kind=op.action.kind.value, machine=op.machine_id, cluster=op.cluster
        )

    def failed(self, op: Operation, outcome: Outcome, error: str, level: LogLevel) -> None:
        self._ctx.log(
            level,
            "action failed",
            kind=op.action.kind.value,
            machine=op.machine_id,
            cluster=op.cluster,
            outcome=outcome.value,
            err=error,
            attempt=op.attempt,
        )

    def fenced(self, kind: str, failure: Failure | None, machine_id: str, cluster: str) -> None:
        error = "" if failure is None else f"{failure.code}: {failure.details}"
        self._ctx.log(
            LogLevel.ERROR,
            "provider fenced this shard's mutation — zombie-shard incident; do not retry, investigate "
            "duplicate shard identity",
            kind=kind,
            machine=machine_id,
            cluster=cluster,
            epoch=self._ctx.settings.epoch,
            sequence=0 if failure is None else failure.sequence,
            err=error,
        )
        self._ctx.audit(
            "fence", kind=kind, machine_id=machine_id or None, cluster=cluster or None, err=error or None
        )


def served(action: Action) -> tuple[str | None, str | None, int | None]:
    """Fingerprint, group and priority of the Need that an action is for; None where it has none."""
    preemptor, profile = action.preemptor, action.profile
    if preemptor is not None:
        return preemptor.need_fingerprint, preemptor.group or None, preemptor.priority
    if profile is not None:
        return profile.fingerprint, action.group or None, profile.priority
    return None, action.group or None, None
