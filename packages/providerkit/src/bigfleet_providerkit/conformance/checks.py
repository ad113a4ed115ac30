"""Checks bound to ids of the catalogue, and the ways in which one ends early."""

import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS

if TYPE_CHECKING:
    from bigfleet_providerkit.conformance.trial import Trial

Body: TypeAlias = "Callable[[Trial], Awaitable[None]]"


class CheckFailed(Exception):  # noqa: N818  # a finding about the provider, not an error of ours
    """The provider did not do what the behaviour says; the text tells what was seen instead."""


class Skip(Exception):  # noqa: N818  # an outcome
    """The check cannot be made here; the text says why."""


class SkipCapability(Skip):
    """The provider lacks an optional capability."""


class SkipFixture(Skip):
    """The run lacks something: machines, hooks, shard ids."""


class Trouble(Exception):  # noqa: N818  # an outcome
    """The call or the harness failed, so nothing was learnt about the behaviour."""


@dataclass(frozen=True, slots=True)
class Check:
    body: Body
    alone: bool
    """Nothing else may touch the provider meanwhile."""


_CHECKS: Final[dict[str, Check]] = {}


def check(behaviour_id: str, *, alone: bool = False) -> Callable[[Body], Body]:
    """Bind a check to its id. ``alone`` keeps ``--parallel`` from running others beside it."""

    def bind(body: Body) -> Body:
        if behaviour_id not in BEHAVIOURS:
            raise LookupError(f"{body.__module__} checks {behaviour_id}, which is not in the catalogue")
        if behaviour_id in _CHECKS:
            raise LookupError(f"{behaviour_id} has two checks: {_CHECKS[behaviour_id].body} and {body}")
        _CHECKS[behaviour_id] = Check(body, alone)
        return body

    return bind


def load() -> dict[str, Check]:
    """All checks, by id. An id without one is missing here and reported as not implemented."""
    from bigfleet_providerkit.conformance import areas

    for module in pkgutil.iter_modules(areas.__path__):
        importlib.import_module(f"{areas.__name__}.{module.name}")
    return dict(_CHECKS)
