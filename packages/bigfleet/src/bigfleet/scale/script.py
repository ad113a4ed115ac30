"""The script of a scripted operator: demand that changes with time, from a JSON file.

``[{"for_s": 20, "needs": [{"instance_type": ["standard-4"], "count": 3, "unit": {"cpu": "4"},
"priority": 1000}]}, …]``
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from bigfleet_base.model import Need, Operator, Profile, Requirement, ResourceVector
from bigfleet_base.model.penalty import PINNED, ZERO, bound_dollars
from bigfleet_base.model.quantity import QuantityError
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY
from bigfleet_base.wire.demand import RollupRefusedError, decode_need, encode_need
from bigfleet_base.wire.quantities import decode_demand

Demand: TypeAlias = Callable[[float], Sequence[Need]]
"""The rows of a cluster, so many seconds after it began."""


class ScriptError(ValueError):
    """A script that cannot be played; the message says where and why."""


_Dollars: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=0)]
    unit: dict[str, str]
    instance_type: Sequence[str] = ()
    zone: Sequence[str] = ()
    same: str = ""
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    interruption_penalty: _Dollars = 0
    reclamation_penalty: _Dollars = 0


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    for_s: Annotated[float, msgspec.Meta(gt=0)]
    needs: Sequence[_Row] = ()


_SCRIPT: Final = msgspec.json.Decoder(Sequence[_Step])


def read_script(data: bytes, cluster: str) -> Demand:
    """Demand from a JSON script: steps that follow one another and start again at the end."""
    try:
        steps = _SCRIPT.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ScriptError(f"is not a script of demand: {error}") from None
    if not steps:
        raise ScriptError("has no step")
    played = [
        (step.for_s, [_need(row, cluster, number, place) for place, row in enumerate(step.needs)])
        for number, step in enumerate(steps)
    ]
    period = sum(length for length, _ in played)

    def demand(elapsed: float) -> Sequence[Need]:
        left = elapsed % period
        for length, rows in played:
            if left < length:
                return rows
            left -= length
        return played[-1][1]

    return demand


def _need(row: _Row, cluster: str, number: int, place: int) -> Need:
    requirements = [
        Requirement(key, Operator.IN, tuple(values))
        for key, values in ((INSTANCE_TYPE_KEY, row.instance_type), (ZONE_KEY, row.zone))
        if values
    ]
    group = ""
    if row.same:
        requirements.append(Requirement(row.same, Operator.SAME, ()))
        group = f"{row.same}/{place}"
    profile = Profile(
        tuple(requirements),
        priority=row.priority,
        interruption_bucket=_bucket(row.interruption_penalty),
        reclamation_bucket=_bucket(row.reclamation_penalty),
    )
    try:
        unit = decode_demand(row.unit)
        # A shard would refuse the whole roll-up for what it does not take, the sum of a large count included.
        return decode_need(
            encode_need(Need(cluster, profile, ResourceVector(unit * row.count), unit, group)), cluster, place
        )
    except QuantityError as error:
        raise ScriptError(f"has a wrong amount - at `$[{number}].needs[{place}].unit`: {error}") from None
    except RollupRefusedError as error:
        raise ScriptError(f"has a need that a shard refuses - at `$[{number}]`: {error}") from None


def _bucket(dollars: float) -> int:
    return next(bucket for bucket in range(ZERO, PINNED + 1) if dollars <= bound_dollars(bucket))
