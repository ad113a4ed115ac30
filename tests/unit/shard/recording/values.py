"""Any value of any type that can be recorded."""

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from bigfleet_base.model import Operator, Profile, Requirement, ResourceVector
from bigfleet_base.model.penalty import BUCKETS
from bigfleet_base.telemetry.catalogue import shard as catalogue
from bigfleet_base.telemetry.series import Series, declared

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
AMOUNTS = st.one_of(st.integers(0, 10**6), st.integers(2**60, 2**90))
REQUIREMENTS = st.builds(
    Requirement, TEXT, st.sampled_from([o for o in Operator if o is not Operator.SAME]), st.tuples(TEXT)
)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type, the awkward ones included: infinities, whole numbers for floats, huge amounts."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of(arg) for arg in args])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(of(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, args))
    if origin is list:
        return st.lists(of(args[0]), max_size=4)
    if origin in (set, frozenset):
        return st.lists(of(args[0]), max_size=4).map(origin)
    if origin in (dict, Mapping):
        return st.dictionaries(of(args[0]), of(args[1]), max_size=4)
    if issubclass(hint, enum.Flag):
        return st.sampled_from([hint(n) for n in range(16)])
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    if issubclass(hint, Series):
        return st.sampled_from([s for s in declared(vars(catalogue)) if isinstance(s, hint)])
    assert isinstance(hint, type) and dataclasses.is_dataclass(hint), hint
    hints = typing.get_type_hints(hint)
    return st.builds(hint, **{f.name: of(hints[f.name]) for f in dataclasses.fields(hint) if f.init})


_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: INTEGERS,
    bool: st.booleans(),
    bytes: st.binary(max_size=5),
    float: st.one_of(st.floats(allow_nan=False), st.just(0), st.integers(1, 9)),
    types.NoneType: st.none(),
    ResourceVector: st.dictionaries(TEXT, AMOUNTS, max_size=3).map(ResourceVector),
    Fraction: st.fractions() | st.builds(Fraction, AMOUNTS, AMOUNTS.map(lambda n: n + 1)),
    Profile: st.builds(
        Profile,
        st.lists(REQUIREMENTS, max_size=2).map(tuple),
        priority=st.integers(0, 10**6),
        interruption_bucket=st.sampled_from(BUCKETS),
    ),
}
