"""Runs planted bugs under many seeds and records how often each was found: `python -m plugins.devkit.tests.mutants.seeds`.

Says so where a bug was missed, or what is right was found guilty, and ends with code 1 then.  Results are kept as lines of
JSON, one for each seed and table, so that a run can go on where it was stopped; `seeds.md` is written from them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from plugins.devkit.tests.mutants.planted import Planted, assert_killed, outcomes_of
from plugins.devkit.tests.mutants.tables import TABLES, run_tables

RECORD: Final = Path(__file__).with_name("seeds.md")
SEEDS: Final = 20
LONG_SEEDS: Final = 1
"""Of checks that take long and draw no values."""


def name_of(table: Planted) -> str:
    return Path(table.file).stem


def is_long(table: Planted, mutant: type) -> bool:
    """So says the check itself (`check_limit.check_seconds`)."""
    check = getattr(table.suite, table.bugs[mutant].check, None)
    return hasattr(check, "check_seconds") or table.bugs[mutant].slow


def run(table: Planted, seed: int) -> dict[str, dict[str, Any]]:
    """What became of each bug, by its name: how long its check took, and what is wrong, if anything is."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1000))

        def new_folder() -> Path:
            path = Path(folder) / str(next(numbers))
            path.mkdir()
            return path

        mutants = [mutant for mutant in table.bugs if seed < LONG_SEEDS or not is_long(table, mutant)]
        found = run_tables([table], mutants, new_folder, seed)
    results: dict[str, dict[str, Any]] = {}
    for mutant in mutants:
        bug = table.bugs[mutant]
        outcomes = outcomes_of(found, table.node(mutant, bug.check))
        fault = ""
        try:
            assert_killed(found, table, mutant)
        except AssertionError as error:
            fault = str(error).splitlines()[0]
        results[mutant.__name__] = {"seconds": max(each.seconds for each in outcomes), "fault": fault}
    return results


def record(lines: Sequence[dict[str, Any]]) -> str:
    """The page that shows them."""
    head = (
        "# Planted bugs under many seeds\n\n"
        "Written by `python -m plugins.devkit.tests.mutants.seeds`. How often the check that is about a bug found it, and\n"
        "what it was made from passed the same check. Of checks that draw values, the seed decides which.\n"
        "Those that take long and draw none run once.\n"
    )
    text = [head]
    by_table: dict[str, dict[int, Any]] = defaultdict(dict)
    for line in lines:
        by_table[line["table"]][line["seed"]] = line["results"]
    for table in TABLES:
        runs = by_table.get(name_of(table), {})
        if not runs:
            continue
        text.append(f"## {name_of(table)}: seeds {min(runs)} to {max(runs)}\n")
        text.append("| bug | check | found | slowest (s) |\n| --- | --- | --- | --- |")
        for mutant, bug in table.bugs.items():
            seen = [results[mutant.__name__] for results in runs.values() if mutant.__name__ in results]
            good = sum(not each["fault"] for each in seen)
            slowest = max((each["seconds"] for each in seen), default=0.0)
            check = bug.check.removeprefix("test_").replace("_", " ")
            text.append(f"| `{mutant.__name__}` | {check} | {good} of {len(seen)} | {slowest:.1f} |")
        text[-1] += "\n"
    return "\n".join(text)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", choices=[[], *map(name_of, TABLES)], help="default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--results", type=Path, required=True, help="file of results, which grows")
    given = parser.parse_args(arguments)
    lines = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    done = {(line["table"], line["seed"]) for line in lines}
    for seed in range(given.seeds):
        for table in TABLES:
            name = name_of(table)
            if (name, seed) in done or (given.tables and name not in given.tables):
                continue
            results = run(table, seed)
            lines.append({"table": name, "seed": seed, "results": results})
            with given.results.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            for bug, result in results.items():
                if result["fault"]:
                    print(f"{name} seed {seed} {bug}: {result['fault']}", flush=True)
    RECORD.write_text(record(lines))
    return int(any(result["fault"] for line in lines for result in line["results"].values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
