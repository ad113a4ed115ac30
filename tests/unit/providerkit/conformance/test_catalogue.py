"""The catalogue and its checks: one of each per id, and the counts that make a certificate comparable."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bigfleet_providerkit.conformance import checks
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS, PROFILES, Gate, Lane, catalogue_hash
from bigfleet_providerkit.conformance.trial import Trial
from tests.support.rules import rule

RULES = Path(__file__).parents[3] / "rules" / "conformance.txt"


async def nothing(t: Trial) -> None:
    """A check that looks at nothing."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, checks.Check]:
    """The checks as they are, to be changed without consequence."""
    copy = dict(checks.load())
    monkeypatch.setattr(checks, "_CHECKS", copy)
    return copy


@rule("conformance.3.6.4")
def test_it_has_the_93_behaviours_of_the_reference_and_ours() -> None:
    theirs = [behaviour for behaviour in BEHAVIOURS.values() if not behaviour.is_ours]
    assert len(theirs) == 93
    assert Counter(behaviour.area.number for behaviour in theirs) == {
        1: 8,
        2: 15,
        3: 11,
        4: 9,
        5: 5,
        7: 8,
        8: 7,
        9: 9,
        10: 7,
        11: 9,
        12: 5,
    }
    assert len(BEHAVIOURS) - len(theirs) == 37


def test_it_has_exactly_the_ids_and_sentences_of_the_specification() -> None:
    lines = (line.removeprefix("conformance.").split(" ", 1) for line in RULES.read_text().splitlines())
    ruled = {line[0]: line[1] for line in lines if line[0][0] in "BX"}
    assert {behaviour.id: behaviour.title for behaviour in BEHAVIOURS.values()} == ruled


def test_every_id_has_a_check_and_every_check_an_id() -> None:
    assert checks.load().keys() == BEHAVIOURS.keys()


def test_a_check_of_an_unknown_id_is_refused(registry: dict[str, checks.Check]) -> None:
    with pytest.raises(LookupError, match="B999"):
        checks.check("B999")(nothing)


def test_two_checks_of_one_id_are_refused(registry: dict[str, checks.Check]) -> None:
    with pytest.raises(LookupError, match="B101 has two checks"):
        checks.check("B101")(nothing)


def test_its_hash_tells_catalogues_apart() -> None:
    changed = [replace(behaviour, slots=behaviour.slots + 1) for behaviour in BEHAVIOURS.values()]
    assert catalogue_hash() == catalogue_hash(BEHAVIOURS.values()) != catalogue_hash(changed)


def test_profiles_gates_and_lanes_are_those_of_the_specification() -> None:
    in_profile = {
        profile: {b.id for b in BEHAVIOURS.values() if profile in b.profiles and not b.is_ours}
        for profile in PROFILES
    }
    assert in_profile["cloud"] == {"B109", "B204", "B215", "B409", "B807"}
    assert in_profile["spot"] == {"B802"}
    assert in_profile["bare-metal"] == set()
    assert in_profile["fault"] == {f"B70{n}" for n in range(1, 9)}
    assert in_profile["durable"] == {f"B100{n}" for n in range(1, 8)}
    assert in_profile["scale"] == {f"B110{n}" for n in range(1, 10)}
    assert len(in_profile["core"]) == 93 - 8 - 7 - 9
    gated = {gate: {b.id for b in BEHAVIOURS.values() if b.gate is gate and not b.is_ours} for gate in Gate}
    assert gated[Gate.DELETE] == {"B109", "B409", "B807"}
    assert gated[Gate.CURSOR] == {"B903", "B904", "B905", "B907", "B908", "B909"}
    assert BEHAVIOURS["B1102"].level == "S, C:R" and BEHAVIOURS["B101"].level == "M"
    assert all(b.lane is Lane.DURABLE for b in BEHAVIOURS.values() if b.area.number == 10)
