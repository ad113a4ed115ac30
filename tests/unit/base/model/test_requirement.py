"""Requirements: what each operator accepts, and what a requirement looks at."""

import json
from pathlib import Path

import pytest

from bigfleet_base.model import Machine, MachineState, Operator, Profile, Requirement
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY

MATCHING = Path(__file__).parent / "vectors" / "matching.jsonl"


@pytest.mark.parametrize(
    ("operator", "values", "accepted", "refused"),
    [
        (Operator.IN, ("a", "b"), ["a", "b"], ["c", "", None]),
        (Operator.IN, (), [], ["a", "", None]),
        (Operator.NOT_IN, ("a", "b"), ["c", "", None], ["a", "b"]),
        (Operator.NOT_IN, (), ["a", "", None], []),
        (Operator.EXISTS, (), ["a", ""], [None]),
        (Operator.DOES_NOT_EXIST, (), [None], ["a", ""]),
        (Operator.SAME, (), ["a", ""], [None]),
        (Operator.SAME, ("a",), ["a"], ["b", "", None]),
    ],
)
def test_each_operator_accepts_exactly_its_values(
    operator: Operator, values: tuple[str, ...], accepted: list[str | None], refused: list[str | None]
) -> None:
    requirement = Requirement("key", operator, values)
    assert [value for value in [*accepted, *refused] if requirement.matches(value)] == accepted


def machine(instance_type: str = "", zone: str = "", **labels: str) -> Machine:
    named = {"type": INSTANCE_TYPE_KEY, "zone_label": ZONE_KEY}
    return Machine(
        "m",
        MachineState.SPECULATIVE,
        instance_type=instance_type,
        zone=zone,
        labels={named.get(key, key): value for key, value in labels.items()},
    )


def test_instance_type_and_zone_are_looked_up_before_the_labels() -> None:
    assert machine("m6i", "z1", type="other", zone_label="other").lookup(INSTANCE_TYPE_KEY) == "m6i"
    assert machine("m6i", "z1", type="other", zone_label="other").lookup(ZONE_KEY) == "z1"


def test_an_empty_attribute_falls_through_to_the_label() -> None:
    assert machine(type="m6i").lookup(INSTANCE_TYPE_KEY) == "m6i"
    assert machine(zone_label="z1").lookup(ZONE_KEY) == "z1"
    assert machine().lookup(ZONE_KEY) is None


def test_all_requirements_must_hold_two_on_one_key_included() -> None:
    profile = Profile(
        (Requirement(ZONE_KEY, Operator.IN, ("a", "b")), Requirement(ZONE_KEY, Operator.IN, ("b", "c")))
    )
    assert len(profile.requirements) == 2
    assert [zone for zone in "abc" if machine(zone=zone).matches(profile)] == ["b"]
    assert machine().matches(Profile())


def test_matching_agrees_with_kubernetes() -> None:
    """The cases come from the Kubernetes library itself (tools/vectors)."""
    judged = 0
    for line in MATCHING.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case.get("invalid"):
            continue
        profile = Profile(
            tuple(
                Requirement(r["key"], Operator(r["operator"]), tuple(r.get("values") or ()))
                for r in case["requirements"]
            )
        )
        labels = case["labels"] or {}
        assert Machine("m", MachineState.SPECULATIVE, labels=labels).matches(profile) == case["matches"], line
        judged += 1
    assert judged >= 500
