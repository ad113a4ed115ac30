"""Tokens: who may still command a machine (provider.md §3.2)."""

from typing import Any

import pytest

from bigfleet_base.model import MachineState
from bigfleet_providerkit.effects import Code, PutFloor, PutMark
from bigfleet_providerkit.state import MAX_GHOSTS
from tests.support.rules import rule
from tests.unit.providerkit.lab import Lab, offering

FENCED = Code.FAILED_PRECONDITION
MAX = 2**63 - 1


@rule("provider.P-20")
def test_only_a_strictly_newer_token_passes() -> None:
    lab = Lab()
    machine = lab.idle()
    assert lab.call("create", machine, ("s", 2, 5)).code is Code.OK
    for stale in [(2, 5), (2, 4), (1, 99_999)]:
        assert lab.call("create", machine, ("s", *stale)).code is FENCED
    assert lab.call("create", machine, ("s", 2, 6)).code is Code.OK


@rule("provider.P-21")
def test_out_of_order_sends_to_different_machines_all_pass() -> None:
    lab = Lab()
    a, b, _ = lab.ids()
    assert lab.call("create", a, ("s", 5, 30)).code is Code.OK
    assert lab.call("create", b, ("s", 5, 7)).code is Code.OK
    assert lab.call("create", b, ("s", 5, 7)).code is FENCED


@rule("provider.P-22")
def test_a_higher_epoch_starts_a_new_sequence_space() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.accept("create", machine, ("s", 1, 1000))
    assert lab.call("create", machine, ("s", 2, 0)).code is Code.OK


@rule("provider.P-23")
def test_a_passing_token_counts_even_when_its_call_is_refused() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    assert lab.call("drain", machine, ("s", 5, 5)).code is Code.ABORTED
    assert lab.call("create", machine, ("s", 5, 4)).code is FENCED
    assert lab.call("create", machine, ("s", 5, 6)).code is Code.OK


@rule("provider.P-24")
def test_a_refused_token_does_not_move_the_mark() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.accept("create", machine, ("s", 3, 0))
    assert lab.call("create", machine, ("s", 2, 9)).code is FENCED
    assert lab.call("create", machine, ("s", 3, 1)).code is Code.OK


@rule("provider.P-25")
def test_shards_do_not_know_of_each_other() -> None:
    lab = Lab()
    a, b, c = lab.ids()
    lab.accept("create", a, ("busy", 9, 9))
    assert lab.call("create", b, ("new", 1, 1)).code is Code.OK
    assert lab.call("create", c, ("zero", 0, 0)).code is Code.OK
    assert lab.call("create", c, ("zero", 0, 0)).code is FENCED


@rule("provider.P-26")
def test_the_zero_token_is_not_fenced_and_leaves_no_mark() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    written = len(lab.written)
    assert lab.call("create", machine).code is Code.OK
    assert lab.call("create", machine).code is Code.OK
    assert not [write for write in lab.written[written:] if isinstance(write, PutMark | PutFloor)]


@rule("provider.P-27", "provider.P-28")
def test_the_fencing_code_has_no_other_meaning_and_reads_never_get_it() -> None:
    lab = Lab()
    machine = lab.configured()
    refused = [
        lab.call("create", machine),
        lab.call("delete", machine),
        lab.call("drain", "ghost"),
        lab.call("drain", machine, grace=-1),
        lab.call("create", ""),
        lab.call("configure", machine, cluster="other"),
        lab.call("configure", machine, cluster=""),
    ]
    assert all(answer.code not in (Code.OK, FENCED) for answer in refused)
    lab.call("create", machine, ("s", 5, 5))
    assert lab.call("create", machine, ("s", 5, 5)).code is FENCED
    assert lab.machine(machine).id == machine and len(lab.list().machines) == 3


@rule("provider.P-29", "provider.P-34")
@pytest.mark.parametrize("kind", ["create", "drain"])
def test_marks_survive_a_restart_whatever_their_call_came_to(kind: str) -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.call(kind, machine, ("s", 3, 7))
    lab.restart()
    assert lab.call("create", machine, ("s", 3, 7)).code is FENCED
    assert lab.call("create", machine, ("s", 3, 8)).code is Code.OK


@rule("provider.P-30")
@pytest.mark.parametrize("token", [("s", -1, 1), ("s", 1, -1), ("", 1, 0), ("", 0, 1), ("", -1, 0)])
def test_a_malformed_token_is_an_invalid_argument_before_anything_else(token: Any) -> None:
    lab = Lab()
    machine = lab.ids()[0]
    assert lab.call("create", machine, token).code is Code.INVALID_ARGUMENT
    assert lab.state(machine) is MachineState.SPECULATIVE
    assert lab.call("create", machine, ("s", 0, 1)).code is Code.OK


@rule("provider.P-30", "provider.P-32", "ruling.R2")
def test_compat_drops_the_floor_and_takes_negative_numbers_and_nothing_else() -> None:
    lab = Lab(compat=True)
    a, b, c = lab.ids()
    lab.accept("create", a, ("s", 5, 1))
    assert lab.call("create", b, ("s", 4, 1)).code is Code.OK
    assert lab.call("create", b, ("s", 4, 1)).code is FENCED
    assert lab.call("create", c, ("neg", -1, -7)).code is Code.OK
    assert lab.call("create", c, ("neg", -1, -7)).code is FENCED
    assert lab.call("create", c, ("", 0, 1)).code is Code.INVALID_ARGUMENT


@rule("provider.P-31")
def test_the_greatest_numbers_are_legal_and_do_not_wrap() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    assert lab.call("create", machine, ("s", MAX, MAX)).code is Code.OK
    lab.restart()
    assert lab.call("create", machine, ("s", MAX, MAX)).code is FENCED


@rule("provider.P-32", "provider.P-34")
@pytest.mark.parametrize("first", ["known", "ghost"])
def test_a_lower_epoch_is_stale_on_every_machine(first: str) -> None:
    lab = Lab()
    a, b, _ = lab.ids()
    lab.call("drain", a if first == "known" else "nobody-has-this", ("s", 5, 1))
    assert lab.call("create", b, ("s", 4, 99)).code is FENCED
    lab.restart()
    assert lab.call("create", b, ("s", 4, 99)).code is FENCED
    assert lab.call("create", b, ("s", 5, 0)).code is Code.OK


@rule("provider.P-33")
def test_marks_of_unknown_ids_are_bounded_and_not_stored() -> None:
    lab = Lab()
    lab.call("create", "ghost-0", ("s", 5, 0))
    written = len(lab.written)
    ghosts = [lab.event("create", f"ghost-{n}", ("s", 5, 1)) for n in range(MAX_GHOSTS + 100)]
    assert all(answer.code is Code.NOT_FOUND for answer in lab.step(*ghosts))
    assert len(lab.written) == written
    assert len(lab.core._state.ghosts.committed) == MAX_GHOSTS
    assert lab.call("create", f"ghost-{MAX_GHOSTS}", ("s", 5, 1)).code is FENCED


@rule("provider.P-33")
def test_the_mark_of_an_unknown_id_holds_when_the_id_appears() -> None:
    lab = Lab(offering(1), reconcile_interval=60 * 10**9)
    lab.offerings = [offering(2)]
    new = lab.ids()[1]
    assert lab.call("create", new, ("s", 5, 5)).code is Code.NOT_FOUND
    lab.advance(61)
    lab.reconcile()
    assert lab.state(new) is MachineState.SPECULATIVE
    assert lab.call("create", new, ("s", 5, 5)).code is FENCED
    lab.restart()
    assert lab.call("create", new, ("s", 5, 5)).code is FENCED
    assert lab.call("create", new, ("s", 5, 6)).code is Code.OK


@rule("provider.P-34", "provider.P-123")
@pytest.mark.parametrize("kind", ["create", "drain"])
def test_a_mark_that_cannot_be_kept_changes_nothing(kind: str) -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.store_down = True
    assert lab.call(kind, machine, ("s", 5, 5)).code is Code.UNAVAILABLE
    lab.store_down = False
    assert lab.state(machine) is MachineState.SPECULATIVE
    assert lab.call("create", machine, ("s", 4, 1)).code is Code.OK


@rule("provider.P-34")
def test_tokens_of_one_batch_see_each_other() -> None:
    lab = Lab()
    a, b, _ = lab.ids()
    answers = lab.step(
        lab.event("create", a, ("s", 5, 5)),
        lab.event("create", a, ("s", 5, 5)),
        lab.event("create", b, ("s", 4, 9)),
        lab.event("drain", "ghost", ("s", 5, 1)),
        lab.event("drain", "ghost", ("s", 5, 1)),
    )
    assert [answer.code for answer in answers] == [Code.OK, FENCED, FENCED, Code.NOT_FOUND, FENCED]


@rule("provider.P-10")
def test_a_stale_token_learns_nothing() -> None:
    lab = Lab()
    machine = lab.configured()
    lab.call("configure", machine, ("s", 5, 5))
    assert lab.call("configure", machine, ("s", 1, 1)).code is FENCED
    assert lab.call("drain", "ghost", ("s", 5, 5)).code is Code.NOT_FOUND
    assert lab.call("drain", "ghost", ("s", 5, 4)).code is FENCED


@rule("provider.P-10")
def test_the_argument_is_judged_before_the_token() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.accept("create", machine, ("s", 5, 5))
    for call in (
        lab.event("create", "", ("s", 1, 1)),
        lab.event("configure", machine, ("s", 1, 1), cluster=""),
        lab.event("configure", machine, ("s", 1, 1), cluster="no/slash"),
        lab.event("drain", machine, ("s", 1, 1), grace=-1),
        lab.event("create", machine, ("no slash", 1, 1)),
        lab.event("create", machine, ("x" * 254, 1, 1)),
    ):
        [answer] = lab.step(call)
        assert answer.code is Code.INVALID_ARGUMENT, answer


def test_shards_that_are_not_allowed_may_not_mutate() -> None:
    lab = Lab(allow_shards=frozenset({"mine"}))
    machine = lab.ids()[0]
    assert lab.call("create", machine, ("other", 1, 1)).code is Code.PERMISSION_DENIED
    assert lab.call("create", machine).code is Code.PERMISSION_DENIED
    assert lab.call("create", machine, ("mine", 1, 1)).code is Code.OK


def test_the_number_of_shards_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigfleet_providerkit.calls.MAX_SHARDS", 2)
    lab = Lab()
    machine = lab.ids()[0]
    for shard in ("a", "b"):
        lab.accept("create", machine, (shard, 1, 1))
    refused = lab.call("create", machine, ("c", 1, 1))
    assert refused.code is Code.RESOURCE_EXHAUSTED and "--allow-shard" in refused.message
    assert lab.call("create", machine, ("a", 1, 2)).code is Code.OK
