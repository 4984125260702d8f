#!/usr/bin/env python3
"""Holds the table of cases in README.md against the tests that there are: every case has one, and every test that it
names exists.

    tests/cases.py build
"""

import re
import subprocess
import sys
from pathlib import Path

CASES = 36
PROGRAMS = ("kernels_tests", "model_tests", "data_tests", "app_tests")


def listed(program):
    """Full names of a program's tests, such as Backends/Attention.Case01_LineCounts/cpu."""
    names, suite = [], ""
    command = [program, "--gtest_list_tests"]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            names.append(suite + word)
        else:
            suite = word
    return names


def main(build):
    built = [build / program for program in PROGRAMS if (build / program).is_file()]
    # A suite may stand behind the name of an instantiation, a test before that of a parameter.
    names = {re.sub(r"^.*?/(?=[^/]*\.)", "", name).split("/")[0] for program in built for name in listed(program)}
    text = (Path(__file__).parent / "README.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) [^|]*\| (.*) \|$", text, re.MULTILINE))
    wrong = [f"case {case} has no row" for case in range(1, CASES + 1) if str(case) not in rows]
    for case, row in rows.items():
        tests = re.findall(r"`([A-Za-z0-9]+\.[A-Za-z0-9_]+)`", row)
        wrong += [f"case {case}: there is no test {test}" for test in tests if test not in names and built]
        if not any(f"Case{int(case):02}" in test for test in tests):
            wrong.append(f"case {case}: no test is named after it")
    for line in wrong:
        print(line)
    print(f"{len(rows)} cases, {len(names)} tests, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
