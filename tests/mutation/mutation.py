#!/usr/bin/env python3
"""Plants deliberate faults, one at a time, and sees whether the tests notice: a check of the tests. Standard library.

    tests/mutation/mutation.py build                      all faults, an hour or so on two cores
    tests/mutation/mutation.py build --only data/ --gpu   those of files whose name holds data/, those for a GPU too
    tests/mutation/mutation.py build --check              plants nothing: does each fault still apply, and name tests?

A fault is caught where the tests that it names fail, or else those of the whole program. The sources are put back as
they were, at Ctrl-C too; a last build makes the programs sound again. Exit code 1: less than nine tenths were caught.
"""

import argparse
import fcntl
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from app_faults import CHECKPOINT, CONFIG, TRAIN  # noqa: E402
from cases import listed  # noqa: E402
from faults import CUDA, DATA, KERNELS, MODEL  # noqa: E402

SOURCE = Path(__file__).resolve().parents[2]
LIST = {
    "kernels": KERNELS,
    "cuda": CUDA,
    "model": MODEL,
    "data": DATA,
    "checkpoint": CHECKPOINT,
    "config": CONFIG,
    "train": TRAIN,
}
NEEDED = 0.9


def programs(fault):
    return [tuple(entry.split(":", 1)) for entry in fault.tests.split()]


def problem(fault):
    """Why a fault does not apply; None where it does."""
    path = SOURCE / fault.file
    count = path.read_text().count(fault.old) if path.is_file() else -1
    if count != 1:
        return "no such file" if count < 0 else f"stands there {count} times, expected once: {fault.old[:60]!r}"
    return None if fault.old != fault.new else "changes nothing"


def check(chosen, build):
    wrong = [f"{fault.file}: {fault.what}: {problem(fault)}" for _, fault in chosen if problem(fault)]
    filters = sorted({entry for _, fault in chosen for entry in programs(fault)})
    for program in sorted({program for program, _ in filters}):
        if not (build / program).is_file():
            print(f"{program} is not built: its filters are not looked at")
            continue
        names = listed(build / program)
        for tests in (tests for name, tests in filters if name == program):
            for pattern in tests.split(":"):
                if not fnmatch.filter(names, pattern):
                    wrong.append(f"{program}: no test fits {pattern}")
    for line in wrong:
        print(line)
    print(f"{len(chosen)} faults, {len(wrong)} problems")
    return 1 if wrong else 0


@contextmanager
def planted(fault):
    path = SOURCE / fault.file
    sound = path.read_text()
    try:
        path.write_text(sound.replace(fault.old, fault.new))
        yield
    finally:
        path.write_text(sound)  # with a new time, so that the next build sees it


class Runner:
    def __init__(self, build, options):
        self.build, self.limit, self.lock, self.narrow = build, options.limit, options.lock, options.narrow
        self.command = shlex.split(options.build_command or f"cmake --build {shlex.quote(str(build))} --target")
        self.logs = build / "mutation"
        self.logs.mkdir(exist_ok=True)

    @contextmanager
    def locked(self):
        if not self.lock:
            yield
            return
        with open(self.lock, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def make(self, targets, log):
        with open(log, "ab") as out:
            return subprocess.run([*self.command, *targets], stdout=out, stderr=subprocess.STDOUT).returncode

    def prepare(self, fault, number):
        """Builds the fault's programs and keeps them in a folder of its own; False where they do not build."""
        targets = sorted({program for program, _ in programs(fault)})
        folder, log = self.logs / str(number), self.logs / f"{number}.log"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        log.unlink(missing_ok=True)
        with planted(fault):
            if self.make(targets, log) != 0:
                return False
        for program in [*targets, *(["axial"] if "app_tests" in targets else [])]:
            os.link(self.build / program, folder / program)
        return True

    def put(self, folder):
        """Its programs to where tests look for them."""
        for program in folder.iterdir():
            (self.build / program.name).unlink(missing_ok=True)
            os.link(program, self.build / program.name)

    def finding(self, program, tests, log):
        """The first test that fails, "" where none does; a program that crashes or hangs has found something too."""
        begin = log.stat().st_size if log.is_file() else 0
        with open(log, "ab") as out:
            process = subprocess.Popen(
                [self.build / program, f"--gtest_filter={tests}", "--gtest_brief=1", "--gtest_fail_fast"],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if process.wait(self.limit) == 0:
                    return ""
            except subprocess.TimeoutExpired:
                return f"{program} does not end"
            finally:
                if process.poll() is None:  # with whatever it has started
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        said = log.read_bytes()[begin:].decode(errors="replace")
        failed = re.search(r"\[  FAILED  \] ([^ ,(\n]+)", said)
        return failed.group(1) if failed else f"{program} ends with {process.returncode}"

    def verdict(self, fault, number):
        log = self.logs / f"{number}.log"
        self.put(self.logs / str(number))
        for entry in programs(fault):
            if found := self.finding(*entry, log):
                return "caught", found
        for program in [] if self.narrow else sorted({program for program, _ in programs(fault)}):
            if found := self.finding(program, "*", log):
                return "caught by others", found
        return "survived", ""

    def sound(self, chosen, log):
        """What the tests of the faults find where nothing is planted: it must be nothing."""
        filters = {}
        for _, fault in chosen:
            for program, tests in programs(fault):
                filters.setdefault(program, []).append(tests)
        with self.locked():
            if self.make(sorted(filters), log) != 0:
                return "the tests do not build"
        for program, tests in filters.items():
            for each in dict.fromkeys(tests):
                if found := self.finding(program, each, log):
                    return found
        return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="build folder")
    parser.add_argument("--check", action="store_true", help="plant nothing")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="of files or descriptions that hold it"
    )
    parser.add_argument("--gpu", action="store_true", help="faults that need a GPU, too")
    parser.add_argument("--build-command", metavar="COMMAND", help="what builds the targets behind it")
    parser.add_argument("--batch", type=int, default=1, help="faults that are built before they are tested")
    parser.add_argument("--narrow", action="store_true", help="no more than the tests that a fault names")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="locked while it builds, where builds take turns")
    parser.add_argument("--limit", type=float, default=900, help="seconds for a test program")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="results, written after each fault; those in it are not run again"
    )
    options = parser.parse_args()
    build = options.build.resolve()
    chosen = [
        (area, fault)
        for area, group in LIST.items()
        for fault in group
        if (options.gpu or options.check or not fault.gpu)
        and (not options.only or any(text in fault.file + fault.what for text in options.only))
    ]
    if options.check:
        return check(chosen, build)
    bad = [fault for _, fault in chosen if problem(fault)]
    if bad:
        print(f"{bad[0].file}: {bad[0].what}: {problem(bad[0])}", file=sys.stderr)
        return 2

    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: sources are put back
        signal.signal(number, signal.default_int_handler)
    runner = Runner(build, options)
    results = json.loads(options.json.read_text()) if options.json and options.json.is_file() else {}
    left = [(area, fault) for area, fault in chosen if f"{fault.file}: {fault.what}" not in results]
    log = runner.logs / "sound.log"
    begin = time.monotonic()
    if left and not results and (found := runner.sound(left, log)):
        print(f"without any fault: {found}; see {log}", file=sys.stderr)
        return 2
    print(f"{len(left)} faults; without any all was well ({time.monotonic() - begin:.0f} s)", flush=True)
    try:
        for first in range(0, len(left), options.batch):
            batch = list(enumerate(left))[first : first + options.batch]
            with runner.locked():
                built = [runner.prepare(fault, number) for number, (_, fault) in batch]
            for (number, (area, fault)), ready in zip(batch, built):
                begin = time.monotonic()
                verdict, by = runner.verdict(fault, number) if ready else ("does not build", "")
                shutil.rmtree(runner.logs / str(number))
                name = f"{fault.file}: {fault.what}"
                results[name] = {"area": area, "verdict": verdict, "by": by}
                seconds = time.monotonic() - begin
                print(f"{verdict:17}{seconds:5.0f} s  {name}" + (f"  ({by})" if by else ""), flush=True)
                if options.json:
                    options.json.write_text(json.dumps(results, indent=1))
    finally:
        if left:
            with runner.locked():
                runner.make(sorted({program for _, fault in left for program, _ in programs(fault)}), log)

    print()
    print("| area | faults | caught | by the tests that they name |\n|---|---|---|---|")
    total = [0, 0, 0]
    for area in LIST:
        verdicts = [row["verdict"] for row in results.values() if row["area"] == area]
        row = [len(verdicts), sum(v.startswith("caught") for v in verdicts), verdicts.count("caught")]
        total = [a + b for a, b in zip(total, row)]
        if verdicts:
            print(f"| {area} | {row[0]} | {row[1]} | {row[2]} |")
    print(f"| all | {total[0]} | {total[1]} ({100 * total[1] / max(1, total[0]):.0f} %) | {total[2]} |")
    for name, row in results.items():
        if not row["verdict"].startswith("caught"):
            print(f"{row['verdict']}: {name}")
    return 0 if total[1] >= NEEDED * total[0] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped; the sources are as they were", file=sys.stderr)
        sys.exit(130)
