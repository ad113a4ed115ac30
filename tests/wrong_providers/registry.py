"""Every wrong provider as data: what it gets wrong, the rule, and the checks that it must turn red."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS
from tests.wrong_providers import breaches
from tests.wrong_providers.planting import Kit


@dataclass(frozen=True)
class WrongProvider:
    """A provider without one rule."""

    name: str
    says: str
    """The rule as it has it, in a sentence."""
    breaks: tuple[str, ...]
    """The rules that it breaks, as file.id or file §section."""
    caught_by: tuple[str, ...]
    """The ids that must fail."""
    knobs: tuple[str, ...]
    """Of the fake, where the mistake needs a certain substrate to show."""
    managed: bool
    """Its mistake shows only in a process that the suite starts itself, and starts again."""
    base: str
    """What it is otherwise: ``fake``, or ``localproc`` where hosts must outlive the provider or do work."""
    plant: Callable[[Kit], None]


_BY_THE_CLOCK: Final = ("B1106",)
"""Percentiles of milliseconds, which a busy computer fails for anyone."""
_ALL: Final[dict[str, WrongProvider]] = {}


def wrong(
    *, breaks: str, caught_by: str, knobs: Sequence[str] = (), managed: bool = False, base: str = "fake"
) -> Callable[[Callable[[Kit], None]], Callable[[Kit], None]]:
    """Register a breach under its function's name; its docstring says what the provider gets wrong."""

    def register(plant: Callable[[Kit], None]) -> Callable[[Kit], None]:
        name = plant.__name__.replace("_", "-")
        ids = tuple(caught_by.split())
        says = (plant.__doc__ or "").strip()
        if name in _ALL or not says or not ids:
            raise LookupError(f"{name}: a wrong provider has its own name, a docstring and a check")
        if unknown := set(ids) - BEHAVIOURS.keys():
            raise LookupError(f"{name} names {min(unknown)}, which is not in the catalogue")
        rules = tuple(f"provider.{one}" if one[0] == "P" else f"provider.md §{one}" for one in breaks.split())
        _ALL[name] = WrongProvider(
            name, " ".join(says.split()), rules, ids, tuple(knobs), managed, base, plant
        )
        return plant

    return register


def controls() -> dict[str, WrongProvider]:
    """Each base with no mistake in it, and the ids that some wrong provider on it must fail."""
    found = {}
    for base in ("fake", "localproc"):
        named = {one for known in load().values() if known.base == base for one in known.caught_by}
        ids = tuple(one for one in BEHAVIOURS if one in named and one not in _BY_THE_CLOCK)
        name = f"unbroken-{base}"
        found[name] = WrongProvider(name, "Nothing is wrong.", (), ids, (), False, base, lambda kit: None)
    return found


def load() -> dict[str, WrongProvider]:
    """All of them, by name."""
    for module in sorted(one.name for one in pkgutil.iter_modules(breaches.__path__)):
        importlib.import_module(f"{breaches.__name__}.{module}")
    return dict(_ALL)
