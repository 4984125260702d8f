#!/usr/bin/env python3
"""Trains for an hour and watches what the process holds: a leak shows as a slope. Standard library; Linux.

    tests/stress/soak.py build/axial --seconds 3600 --csv soak.csv [-- key=value...]

Fashion-MNIST where it is installed (else a synthetic set), on one CPU thread, with averages, an evaluation and
checkpoints each epoch, and `axial report` of the run every few minutes. Every ten seconds resident memory, open
files and threads go into the CSV file; at the end their slopes after the warm-up are printed. Exit code 1: a command failed,
or the memory grows by more than --most MiB an hour, or files or threads grow at all.

    tests/stress/soak.py build/axial --gpu 0 --seconds 600 --warmup 120

trains fashion_mnist_speed.yaml on that GPU, which nothing else may use, and watches its memory too (nvidia-smi): it may
not grow at all.
"""

import argparse
import csv
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


def sample(pid, gpu):
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status if ":" in line)
    values = (int(fields["VmRSS"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"]))
    return values if gpu is None else (*values, device_memory(gpu))


def device_memory(gpu):
    """MiB in use on a GPU, by whoever."""
    query = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, check=True, capture_output=True, text=True).stdout)


def slope(times, values):
    """Least squares, an hour."""
    mean_t, mean_v = statistics.fmean(times), statistics.fmean(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    return 3600 * sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values)) / spread if spread > 0 else 0.0


def command(options, folder):
    if options.gpu is not None:
        name, sized = "fashion_mnist_speed", ["train.device=cuda", "train.eval_every=1", "train.checkpoint_every=1"]
    elif Path("/usr/share/datasets/fashion-mnist").is_dir():
        name, sized = "fashion_mnist_cpu", ["data.train_limit=6000"]
    else:
        name, sized = "smoke", ["data.synthetic_train=4096"]
    return [
        options.program,
        "train",
        "-c",
        str(SOURCE / "configs" / f"{name}.yaml"),
        "-o",
        str(folder / "run"),
        "--time-limit",
        str(options.seconds / 60),
        "train.epochs=100000",
        "train.threads=1",
        "train.ema_decay=0.99",
        "train.keep_last=2",
        "train.keep_best=2",
        "model.attention_dropout=0.1",
        *sized,
        *options.keys,
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("keys", nargs="*", help="configuration, key=value")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--warmup", type=float, default=600, help="seconds at the start that count for nothing")
    parser.add_argument("--every", type=float, default=10, help="seconds between samples")
    parser.add_argument("--report", type=float, default=300, help="seconds between reports")
    parser.add_argument("--most", type=float, default=4, help="MiB an hour that memory may grow by")
    parser.add_argument("--csv", type=Path, help="where the samples go")
    parser.add_argument("--gpu", type=int, help="train on this GPU and watch its memory")
    options = parser.parse_args()
    options.program = str(Path(options.program).resolve())

    environment = dict(os.environ)
    if options.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(options.gpu)
    rows, reports = [], 0
    with tempfile.TemporaryDirectory(prefix="axial-soak-") as name:
        folder = Path(name)
        with open(folder / "log", "wb") as log:
            training = subprocess.Popen(command(options, folder), stdout=log, stderr=log, env=environment)
        begin = time.monotonic()
        try:
            while training.poll() is None:
                now = time.monotonic() - begin
                try:
                    rows.append((now, *sample(training.pid, options.gpu)))
                except (OSError, KeyError):  # it has ended in between
                    break
                if now > (reports + 1) * options.report:
                    reports += 1
                    subprocess.run(
                        [options.program, "report", str(folder / "run"), "-o", str(folder / "report.html")],
                        check=True,
                        capture_output=True,
                    )
                time.sleep(options.every)
            code = training.wait()
        finally:
            if training.poll() is None:
                training.send_signal(signal.SIGTERM)
                training.wait()
        if options.csv:
            with open(options.csv, "w", newline="") as file:
                csv.writer(file).writerows(
                    [("seconds", "rss_kib", "files", "threads", *([] if options.gpu is None else ["gpu_mib"])), *rows]
                )
        metrics = folder / "run" / "metrics.csv"
        epochs = len(metrics.read_text().splitlines()) - 1 if metrics.is_file() else 0
        if code != 0:
            print(f"the training ended with {code}:\n{(folder / 'log').read_text()[-2000:]}", file=sys.stderr)
            return 1

    steady = [row for row in rows if row[0] >= options.warmup]
    if len(steady) < 10:
        print(f"{len(steady)} samples after the warm-up, expected 10 or more", file=sys.stderr)
        return 1
    times = [row[0] for row in steady]
    grows = slope(times, [row[1] for row in steady]) / 1024
    third = len(steady) // 3
    print(
        f"{rows[-1][0]:.0f} s, {epochs} epochs with an evaluation and checkpoints, {reports} reports, "
        f"{len(rows)} samples, {len(steady)} after {options.warmup:.0f} s of warm-up"
    )
    first, last = (statistics.median(row[1] for row in part) / 1024 for part in (steady[:third], steady[-third:]))
    print(
        f"resident memory: slope {grows:+.2f} MiB an hour; median of the first third {first:.1f} MiB, of the last "
        f"{last:.1f}; {min(r[1] for r in steady) / 1024:.1f} to {max(r[1] for r in steady) / 1024:.1f} MiB"
    )
    bad = grows > options.most
    columns = [(2, "open files"), (3, "threads"), *([] if options.gpu is None else [(4, "MiB on the GPU")])]
    for column, what in columns:
        values = [row[column] for row in steady]
        first, last = (statistics.median(row[column] for row in part) for part in (steady[:third], steady[-third:]))
        print(
            f"{what}: slope {slope(times, values):+.2f} an hour; {min(values)} to {max(values)}, "
            f"median {first:g}, {last:g}"
        )
        bad = bad or last > first
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
