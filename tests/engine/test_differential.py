"""The engine decides what the oracle decides, over random histories (see ``differential``)."""

import json
import os
from pathlib import Path

import pytest

from tests.engine.differential import REGRESSIONS, first_difference, main, run


@pytest.mark.timeout(8 * 3600)
def test_engine_and_oracle_agree_on_every_fleet(full_size: bool, capsys: pytest.CaptureFixture[str]) -> None:
    start, fleets = 0, 1_000_000 if full_size else 20_000
    tally = run(start, fleets, jobs=os.cpu_count() or 1)
    with capsys.disabled():
        print(f"\nseeds {start} to {start + tally.fleets - 1}, {tally.table()}")
    shown = "\n".join(f"seed {seed}: {what}" for seed, what in sorted(tally.differences.items()))
    assert not tally.differences, (
        f"{shown}\nshrink with: python -m tests.engine.differential --from SEED --fleets 1"
    )
    assert not tally.rare(), f"too rare to be tested by chance: {tally.rare()}"


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*.json")), ids=lambda path: path.stem)
def test_every_difference_once_found_stays_mended(path: Path) -> None:
    assert first_difference(json.loads(path.read_text(encoding="utf-8"))) is None


def test_a_few_fleets_are_judged_by_their_differences_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", "3", "--fleets", "2", "--jobs", "1"]) == 0
    assert "2 fleets, seeds 3 to 4, 0 differences" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--fleets", "0"], ["--from=-1"], ["--jobs", "none"]])
def test_a_run_of_no_fleets_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(wrong)
    assert exit_.value.code == 2 and "is no whole number" in capsys.readouterr().err
