"""Needs that a cluster's operator cannot serve at present (shard.md X4).

An operator that answers a bootstrap request with an error would do so for every machine of that Need: its
(cluster, fingerprint) is blocked, the engine starts nothing for it, and after a pause one action probes
whether it has been mended. For that the Need takes part in one cycle. If nothing comes of it, because there
is nothing to be had, it is left out again for a while: one that takes part keeps the machines that it would
have drained for itself from being given back, and from everybody else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.shard.core.backoff import back_off
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.settings import MINUTE

MAX_BLOCKS: Final = 10_000
LOOK_EVERY: Final = MINUTE
"""So often a Need whose pause is over takes part in a cycle, until a probe can be made."""
FORGET_AFTER: Final = 60 * MINUTE
"""A block whose pause has been over for so long has no Need any more."""

Pair = tuple[str, str]
"""(cluster, fingerprint)"""


class BlockPhase(StrEnum):
    HELD = "held"
    PROBED = "probed"
    """An action has been started to find out; until it has, the rest stays held."""
    LIFTED = "lifted"
    """A blob has come. The failures are remembered until the machine takes it, so that one that is refused or
    expires each time does not start from the shortest pause each time."""


@dataclass(slots=True)
class Block:
    phase: BlockPhase
    failures: int
    until: int
    again: int = 0
    """Since its Need took part in a cycle, and no probe came of it: when it does so again."""
    buys: str = ""
    """The machine that the probe buys; empty for one that has a machine."""


@dataclass(slots=True)
class BlocksState:
    clusters: dict[str, dict[str, Block]] = field(default_factory=dict)
    """By cluster and fingerprint."""
    count: int = 0
    """Of all clusters; at most MAX_BLOCKS, beyond which the cluster blocked first loses its oldest."""


class Blocks:
    """Which (cluster, fingerprint) are blocked, and until when."""

    def __init__(self, ctx: Context, state: BlocksState) -> None:
        self._ctx = ctx
        self.state = state

    def failed(self, pair: Pair) -> None:
        """The operator has no usable blob for it."""
        now = self._ctx.now
        block = self._get(pair)
        if block is None:
            self._add(pair, Block(BlockPhase.HELD, 1, now + back_off(1)))
            return
        if block.phase is BlockPhase.HELD:
            # Many requests may be out when the first is refused; together they are one failure.
            return
        if block.phase is BlockPhase.PROBED or now >= block.until:
            block.failures += 1
        block.phase = BlockPhase.HELD
        block.until = now + back_off(block.failures)

    def lift(self, pair: Pair) -> None:
        """A blob has come."""
        block = self._get(pair)
        if block is None:
            return
        if block.phase is BlockPhase.PROBED:
            # A failure from here on is a new one, not the rest of what failed together.
            block.until = self._ctx.now
        block.phase = BlockPhase.LIFTED

    def forget(self, pair: Pair) -> None:
        """A machine was configured."""
        if self._get(pair) is not None:
            self._remove(pair)

    def forget_cluster(self, cluster: str) -> None:
        """A new session, perhaps of a new operator."""
        self.state.count -= len(self.state.clusters.pop(cluster, {}))

    def holds(self, pair: Pair) -> bool:
        """Whether nothing is to be started for it now."""
        block = self._get(pair)
        return block is not None and self._is_held(block)

    def probe(self, pair: Pair, buys: str = "") -> bool:
        """An action is started for it, which may buy a machine: whether it is the probe. There is one for
        each pause, however it ends."""
        block = self._get(pair)
        if block is None or block.phase is BlockPhase.LIFTED or self._ctx.now < block.until:
            return False
        block.phase, block.buys = BlockPhase.PROBED, buys
        block.until = self._ctx.now + back_off(block.failures)
        return True

    def bought(self, pair: Pair, machine_id: str) -> None:
        """A machine has come that was bought for it. If it is the probe's, the probe goes on with it at once:
        by the end of the pause it may have been given back, and the next probe would buy another."""
        block = self._get(pair)
        if block is not None and block.phase is BlockPhase.PROBED and block.buys == machine_id:
            block.until = block.again = self._ctx.now

    def held(self) -> frozenset[Pair]:
        """All for which the coming cycle is to start nothing."""
        now = self._ctx.now
        for pair in [p for p, b in self._all() if now >= b.until + FORGET_AFTER]:
            self._remove(pair)
        held = set()
        for pair, block in self._all():
            if block.phase is not BlockPhase.LIFTED:
                if now < max(block.until, block.again):
                    held.add(pair)
                else:
                    block.again = now + LOOK_EVERY
        return frozenset(held)

    def admit(self, actions: list[Action]) -> list[Action]:
        """Leave out what is for a blocked Need; of one that is to be probed the first Bootstrap stays, or
        else the first Provision."""
        if not self.state.count:
            return actions
        probes: dict[Pair, Action] = {}
        for kind in (ActionKind.BOOTSTRAP, ActionKind.PROVISION):
            for action in actions:
                pair = beneficiary(action)
                if action.kind is kind and pair is not None and self._is_due(pair):
                    probes.setdefault(pair, action)
        return [action for action in actions if self._admits(action, probes)]

    def _admits(self, action: Action, probes: dict[Pair, Action]) -> bool:
        pair = beneficiary(action)
        block = None if pair is None else self._get(pair)
        if pair is None or block is None or block.phase is BlockPhase.LIFTED:
            return True
        return probes.get(pair) is action

    def _is_held(self, block: Block) -> bool:
        return block.phase is not BlockPhase.LIFTED and self._ctx.now < block.until

    def _is_due(self, pair: Pair) -> bool:
        block = self._get(pair)
        return block is not None and block.phase is not BlockPhase.LIFTED and self._ctx.now >= block.until

    def _all(self) -> Iterator[tuple[Pair, Block]]:
        for cluster, blocks in self.state.clusters.items():
            for fingerprint, block in blocks.items():
                yield (cluster, fingerprint), block

    def _get(self, pair: Pair) -> Block | None:
        cluster, fingerprint = pair
        return self.state.clusters.get(cluster, {}).get(fingerprint)

    def _add(self, pair: Pair, block: Block) -> None:
        if self.state.count >= MAX_BLOCKS:
            oldest, _ = next(self._all())
            self._remove(oldest)
        cluster, fingerprint = pair
        self.state.clusters.setdefault(cluster, {})[fingerprint] = block
        self.state.count += 1

    def _remove(self, pair: Pair) -> None:
        cluster, fingerprint = pair
        blocks = self.state.clusters[cluster]
        del blocks[fingerprint]
        if not blocks:
            del self.state.clusters[cluster]
        self.state.count -= 1


def beneficiary(action: Action) -> Pair | None:
    """The Need that an action serves; None for one that serves no Need."""
    if action.preemptor is not None:
        return (action.preemptor.cluster, action.preemptor.need_fingerprint)
    if action.profile is not None:
        return (action.cluster, action.profile.fingerprint)
    return None
