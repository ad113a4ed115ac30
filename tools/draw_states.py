"""Draw docs/state-machine.md from the table in bigfleet_base.model.lifecycle.

`make generate` writes it; with --check nothing is written and a stale file is an error.
"""

import argparse
import sys
from pathlib import Path

from bigfleet_base.model.lifecycle import EDGES, GRID, STABLE, Driver, Edge

PAGE = Path(__file__).parent.parent / "docs" / "state-machine.md"

INTRODUCTION = """\
# The life of a machine

A machine is a slot that hardware comes to and leaves; its id never changes. Three states are stable, and
each provider call moves a machine from one of them to another through a transitional state. A provider
finishes transitions in its own time, so everything that is not an action is observed, never assumed.
A machine changes clusters only through Idle. Failed is left by the provider's repair, and by nothing else.

This page is drawn from the table in `bigfleet_base.model.lifecycle` by `make generate`.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="fail if the page is stale, write nothing")
    wanted = page()
    if not parser.parse_args().check:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        print(
            "docs/state-machine.md does not show the table it is drawn from: run `make generate`",
            file=sys.stderr,
        )
        return 1
    return 0


def page() -> str:
    return "\n".join([INTRODUCTION, *_diagram(), "", *_grid(), "", *_edges(), ""])


def _diagram() -> list[str]:
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR", "    [*] --> Speculative"]
    lines += [f"    {e.source.title} --> {e.target.title}: {_label(e)}" for e in EDGES]
    lines += [
        "    classDef stable font-weight:bold",
        f"    class {','.join(s.title for s in sorted(STABLE))} stable",
    ]
    return [*lines, "```"]


def _label(edge: Edge) -> str:
    return str(edge.rpc) if edge.driver is Driver.ACTION else str(edge.driver)


def _grid() -> list[str]:
    lines = ["## What a record carries", "", "| State | Kind | Host | Cluster |", "|---|---|---|---|"]
    for state, (host, cluster) in GRID.items():
        kind = "stable" if state in STABLE else "failed" if state.title == "Failed" else "transitional"
        lines.append(f"| {state.title} | {kind} | {host.value} | {cluster.value} |")
    return lines


def _edges() -> list[str]:
    lines = [
        f"## The {len(EDGES)} legal changes",
        "",
        "| From | To | Driven by | Call | May set | Clears | Remembered beside the record |",
        "|---|---|---|---|---|---|---|",
    ]
    for e in EDGES:
        cells = [
            e.source.title,
            e.target.title,
            str(e.driver),
            str(e.rpc or "–"),
            ", ".join(f"`{name}`" for name in sorted(e.sets)) or "–",
            ", ".join(f"`{name}`" for name in sorted(e.clears)) or "–",
            "; ".join(e.memory) or "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
