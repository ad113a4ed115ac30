"""The three CRDs as the specification has them (crds.md), transcribed by hand.

Never fill these tables from our own manifests: they are what the manifests are checked against.

`SCHEMAS` has a row per node of the schema: its path (`[]` an item of a list, `{}` a value of a map), its
type, then what else is fixed about it. `quantity` is the int-or-string with the pattern below.
"""

from dataclasses import dataclass

QUANTITY = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",  # noqa: E501 — Kubernetes' own, unbroken
    "x-kubernetes-int-or-string": True,
}

SCHEMAS = {
    "capacityrequests": """
        .                                                   object required=spec
        .apiVersion                                         string
        .kind                                               string
        .metadata                                           object
        .spec                                               object required=priority,resources
        .spec.requirements                                  array
        .spec.requirements[]                                object required=key,operator
        .spec.requirements[].key                            string
        .spec.requirements[].operator                       string enum=In,NotIn,Exists,DoesNotExist
        .spec.requirements[].values                         array list-type=atomic
        .spec.requirements[].values[]                       string
        .spec.resources                                     object
        .spec.resources{}                                   quantity
        .spec.priority                                      integer format=int32
        .spec.topologySpread                                array
        .spec.topologySpread[]                  object required=maxSkew,topologyKey,whenUnsatisfiable
        .spec.topologySpread[].topologyKey                  string
        .spec.topologySpread[].maxSkew                      integer format=int32
        .spec.topologySpread[].whenUnsatisfiable            string
        .spec.coLocation                                    object required=topologyKey
        .spec.coLocation.topologyKey                        string
        .spec.coLocation.labelSelector                      object map-type=atomic
        .spec.coLocation.labelSelector.matchLabels          object
        .spec.coLocation.labelSelector.matchLabels{}        string
        .spec.coLocation.labelSelector.matchExpressions     array list-type=atomic
        .spec.coLocation.labelSelector.matchExpressions[]   object required=key,operator
        .spec.coLocation.labelSelector.matchExpressions[].key       string
        .spec.coLocation.labelSelector.matchExpressions[].operator  string
        .spec.coLocation.labelSelector.matchExpressions[].values    array list-type=atomic
        .spec.coLocation.labelSelector.matchExpressions[].values[]  string
        .spec.interruptionPenalty                           quantity
        .spec.reclamationPenalty                            quantity
        .status                                             object required=phase
        .status.phase                                       string enum=Pending,Acknowledged
        .status.acknowledgedAt                              string format=date-time
    """,
    "availablecapacities": """
        .                                                   object required=spec
        .apiVersion                                         string
        .kind                                               string
        .metadata                                           object
        .spec                               object required=availability,availableCount,cost,resources
        .spec.availability                                  string enum=None,Low,Medium,High
        .spec.availableCount                                integer format=int32
        .spec.cost                                          quantity
        .spec.requirements                                  array
        .spec.requirements[]                                object required=key,operator
        .spec.requirements[].key                            string
        .spec.requirements[].operator                       string
        .spec.requirements[].values                         array list-type=atomic
        .spec.requirements[].values[]                       string
        .spec.resources                                     object
        .spec.resources{}                                   quantity
        .status                                             object
    """,
    "upcomingnodes": """
        .                                                   object required=spec
        .apiVersion                                         string
        .kind                                               string
        .metadata                                           object
        .spec                                               object required=resources
        .spec.labels                                        object
        .spec.labels{}                                      string
        .spec.resources                                     object
        .spec.resources{}                                   quantity
        .spec.taints                                        array
        .spec.taints[]                                      object required=effect,key
        .spec.taints[].key                                  string
        .spec.taints[].effect                               string
        .spec.taints[].value                                string
        .spec.taints[].timeAdded                            string format=date-time
        .status                                             object required=phase
        .status.phase   string enum=Provisioning,Launched,Registered,Ready,Draining,Drained,Failed
        .status.nodeRef                                     object map-type=atomic
        .status.nodeRef.apiVersion                          string
        .status.nodeRef.fieldPath                           string
        .status.nodeRef.kind                                string
        .status.nodeRef.name                                string
        .status.nodeRef.namespace                           string
        .status.nodeRef.resourceVersion                     string
        .status.nodeRef.uid                                 string
        .status.providerID                                  string
        .status.provisioningStartTime                       string format=date-time
        .status.lastError                                   string
    """,
}


@dataclass(frozen=True)
class Surface:
    """What kubectl shows of a kind."""

    kind: str
    singular: str
    short_names: list[str]
    scope: str
    # Name, type, JSON path; in this order.
    columns: list[tuple[str, str, str]]
    selectable: list[str]


SURFACES = {
    "capacityrequests": Surface(
        kind="CapacityRequest",
        singular="capacityrequest",
        short_names=["cr", "crs"],
        scope="Namespaced",
        columns=[
            ("Phase", "string", ".status.phase"),
            ("Priority", "integer", ".spec.priority"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ],
        selectable=[".status.phase"],
    ),
    "availablecapacities": Surface(
        kind="AvailableCapacity",
        singular="availablecapacity",
        short_names=["avc"],
        scope="Cluster",
        columns=[
            ("Availability", "string", ".spec.availability"),
            ("Available", "integer", ".spec.availableCount"),
            ("Cost", "string", ".spec.cost"),
        ],
        selectable=[],
    ),
    "upcomingnodes": Surface(
        kind="UpcomingNode",
        singular="upcomingnode",
        short_names=["upn"],
        scope="Cluster",
        columns=[
            ("Phase", "string", ".status.phase"),
            ("Node", "string", ".status.nodeRef.name"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ],
        selectable=[],
    ),
}


def manifest(plural: str) -> dict[str, object]:
    """The manifest of a kind, with the rows of `SCHEMAS`, by path, in the place of its schema."""
    surface = SURFACES[plural]
    rows = [line.split(maxsplit=1) for line in SCHEMAS[plural].strip().splitlines()]
    version: dict[str, object] = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path} for name, kind, path in surface.columns
        ],
        "schema": {"openAPIV3Schema": {path: facts.strip() for path, facts in rows}},
    }
    if surface.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in surface.selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.bigfleet.lucy.sh"},
        "spec": {
            "group": "bigfleet.lucy.sh",
            "names": {
                "kind": surface.kind,
                "listKind": f"{surface.kind}List",
                "plural": plural,
                "singular": surface.singular,
                "shortNames": surface.short_names,
                "categories": ["fleet"],
            },
            "scope": surface.scope,
            "versions": [version],
        },
    }
