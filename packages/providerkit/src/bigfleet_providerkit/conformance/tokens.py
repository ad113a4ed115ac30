"""Tokens that no other run has used (wire.md §8.1)."""

import secrets
from typing import Final

from bigfleet_base.wire.provider_calls import Token
from bigfleet_providerkit.conformance.checks import SkipFixture

ZERO: Final = Token("", 0, 0)
SHARED_IDS: Final = 4
"""As many as any id needs at once; given ones beyond them can be used up."""


def unused_id(name: str) -> str:
    """A machine id that no provider has."""
    return f"conformance-{name}-{secrets.token_hex(6)}"


class Shard:
    """A shard of the suite's own. Its numbers begin at 0, whatever the provider has seen of the id."""

    def __init__(self, tokens: "Tokens", shard_id: str, base: int) -> None:
        self.id = shard_id
        self._tokens = tokens
        self._base = base

    def token(self, epoch: int, sequence: int) -> Token:
        """The token (epoch, sequence) as this shard counts."""
        self._tokens.used(self.id, self._base + epoch)
        return Token(self.id, self._base + epoch, sequence)

    def raw(self, epoch: int, sequence: int) -> Token:
        """The very numbers, for those that no shard would send."""
        return Token(self.id, epoch, sequence)


class Tokens:
    """Mints shards and ordinary tokens.

    Against a target that checks identities there are only the shard ids of our certificates, and they outlive
    the run: every shard minted on one counts from an epoch above all that went before.
    """

    def __init__(self, run: str, shard_ids: tuple[str, ...], start_epoch: int) -> None:
        self._run = run
        self._minted = 0
        self._known = dict.fromkeys(shard_ids, start_epoch)

    @property
    def checks_identity(self) -> bool:
        return bool(self._known)

    def ordinary(self) -> Token:
        """The token of a call whose fencing does not matter."""
        if not self._known:
            return ZERO
        shard_id = next(iter(self._known))
        self._known[shard_id] += 1
        return Token(shard_id, self._known[shard_id], 1)

    def shards(self, count: int) -> list[Shard]:
        """Distinct shards that the provider knows nothing newer of."""
        if not self._known:
            self._minted += count
            return [Shard(self, f"conf-{self._run}-{self._minted - n}", 0) for n in range(count)]
        if count > len(self._known):
            raise SkipFixture(f"needs {count} shard ids and {len(self._known)} --shard-id are given")
        return [Shard(self, shard_id, top + 1) for shard_id, top in list(self._known.items())[:count]]

    def unknown_shard(self) -> Shard:
        """A shard that the provider has never heard of: of given ids one that nothing else will use."""
        if not self._known:
            return self.shards(1)[0]
        if len(self._known) <= SHARED_IDS:
            raise SkipFixture(
                f"needs a shard id of its own that the provider does not know: give more than {SHARED_IDS}"
                " --shard-id"
            )
        shard_id, _ = self._known.popitem()
        return Shard(self, shard_id, 0)

    def used(self, shard_id: str, epoch: int) -> None:
        """Ordinary tokens come after this."""
        if shard_id in self._known:
            self._known[shard_id] = max(self._known[shard_id], epoch)
