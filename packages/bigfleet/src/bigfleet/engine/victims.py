"""Which bound machine is the best to take, and when one that drains is worth waiting for (engine.md §11)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from bigfleet.engine.cells import Binding
from bigfleet.engine.options import SECOND, Options, drain_grace_s
from bigfleet.engine.stock import Span
from bigfleet.engine.supply import Supply

AnySpan = TypeVar("AnySpan", bound=Span)


@dataclass(frozen=True, slots=True)
class VictimOrder:
    """Victims by score, the highest first."""

    options: Options

    def score(self, binding: Binding, preemptor: int) -> float:
        """How good a victim is: far below in priority, quick to drain, cheap to interrupt and to give up."""
        weights = self.options.weights
        gap = max(0, preemptor - binding.priority)
        return (
            gap * weights.priority
            + (1 / max(1.0, self.options.estimated_drain_s)) * weights.drain
            + _reciprocal(binding.interruption_penalty) * weights.interruption
            + _reciprocal(binding.reclamation_penalty) * weights.reclamation
        )

    def groups(self, spans: Iterable[AnySpan], preemptor: int) -> Iterator[list[AnySpan]]:
        """Spans in groups of equal score; inside a group ids decide."""
        scored: dict[float, list[AnySpan]] = {}
        for span in spans:
            scored.setdefault(self.score(span.stock.cell.binding, preemptor), []).append(span)
        for score in sorted(scored, reverse=True):
            yield scored[score]


def lowest_stamp(spans: Iterable[Span]) -> int | None:
    """The lowest assigned priority among candidates; None where there is no candidate."""
    return min((span.stock.cell.binding.priority for span in spans), default=None)


def in_time(supply: Supply, machine_id: str, preemptor: int, lowest: int | None, now: int) -> bool:
    """Whether a drain stamped for nobody ends before the best victim could be free."""
    deadline = supply.inventory.drain_deadline(machine_id)
    if lowest is None or deadline is None:
        return True
    return deadline <= now + drain_grace_s(preemptor - lowest) * SECOND


def _reciprocal(penalty: float) -> float:
    return 0.0 if penalty == math.inf else 1 / max(0.01, penalty)
