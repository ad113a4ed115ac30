"""The three CRD manifests against the tables of the specification."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bigfleet_base.api import crd_paths
from tests.support.rules import rule
from tests.unit.base.api import crd_table

MANIFESTS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in crd_paths()}


@rule("crds.CRD-18")
def test_there_is_one_manifest_per_kind() -> None:
    assert MANIFESTS.keys() == crd_table.SCHEMAS.keys()


@rule("crds.CRD-18")
@pytest.mark.parametrize("name", crd_table.SCHEMAS)
def test_manifest_equals_the_tables_of_the_specification(name: str) -> None:
    assert _comparable(MANIFESTS[name]) == crd_table.manifest(name)


@rule("crds.CRD-18")
@pytest.mark.parametrize("name", crd_table.SCHEMAS)
def test_every_single_change_to_a_manifest_is_a_difference(name: str) -> None:
    wanted = crd_table.manifest(name)
    assert not [change for change, mutant in _mutants(MANIFESTS[name]) if _comparable(mutant) == wanted]


@rule("ruling.R9")
def test_only_the_operator_of_a_request_requirement_is_an_enum() -> None:
    schemas = {
        name: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for name, crd in MANIFESTS.items()
    }
    rows = {
        f"{name}{path}": facts for name, schema in schemas.items() for path, facts in _rows(schema).items()
    }
    assert {path: facts for path, facts in rows.items() if path.endswith(".operator")} == {
        "capacityrequests.spec.requirements[].operator": "string enum=In,NotIn,Exists,DoesNotExist",
        "capacityrequests.spec.coLocation.labelSelector.matchExpressions[].operator": "string",
        "availablecapacities.spec.requirements[].operator": "string",
    }


def _comparable(node: Any) -> Any:
    """The manifest in the form of `crd_table.manifest`: rows instead of the schema."""
    if isinstance(node, list):
        return [_comparable(item) for item in node]
    if isinstance(node, dict):
        return {
            key: _rows(value) if key == "openAPIV3Schema" else _comparable(value)
            for key, value in node.items()
        }
    return node


def _rows(schema: dict[str, Any], path: str = "") -> dict[str, str]:
    """A row per node of the schema, in the form of `crd_table.SCHEMAS`. Descriptions are free."""
    own = {key: value for key, value in schema.items() if key not in {"description", *_CHILDREN}}
    rows = {path or ".": "quantity" if own == crd_table.QUANTITY else " ".join(_facts(own))}
    for name, child in schema.get("properties", {}).items():
        rows |= _rows(child, f"{path}.{name}")
    for key, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            rows |= _rows(schema[key], path + suffix)
    return rows


_CHILDREN = ("properties", "items", "additionalProperties")


def _facts(node: dict[str, Any]) -> Iterator[str]:
    yield node.get("type", "untyped")
    for key, value in node.items():
        if key == "required":
            # Its order means nothing; that of an enum is what a user reads in an error.
            value = sorted(value)
        if key != "type":
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            yield f"{key.removeprefix('x-kubernetes-')}={text}"


def _mutants(manifest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Copies with one thing removed, one value changed or one key added, at every place there is."""
    for *parents, last in _places(manifest):
        for change in ("remove", "replace", "add"):
            mutant = copy.deepcopy(manifest)
            holder: Any = mutant
            for step in parents:
                holder = holder[step]
            match change, holder[last]:
                case "remove", _:
                    del holder[last]
                case "replace", str() | bool() as old:
                    holder[last] = f"not {old}"
                case "add", dict() as old:
                    old["default"] = {"type": "string"}
                case _:
                    continue
            yield f"{change} {'.'.join(map(str, [*parents, last]))}", mutant


def _places(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        if key != "description":
            yield (*path, key)
            yield from _places(child, (*path, key))
