"""What a run leaves, read by others' own readers: TensorBoard's for event files, safetensors' for checkpoints and weights.

    python3 tests/app/readers_test.py PROGRAM SMOKE_YAML

Exit code 77, with the reason, where python3 lacks the package tensorboard or safetensors (and numpy).
"""

import csv
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import numpy
    from safetensors import safe_open
    from safetensors.numpy import save_file
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except Exception as error:  # an installation that is not whole raises more than ImportError
    print(f"skipped: {sys.executable} lacks tensorboard, safetensors or numpy ({str(error).splitlines()[0]})", flush=True)
    sys.exit(77)

program, configuration = map(os.path.abspath, sys.argv[1:3])


def check(condition, what):
    if not condition:
        raise SystemExit(f"readers: {what}")


def run(*command):
    done = subprocess.run([program, *command], capture_output=True, text=True, cwd=folder)
    check(done.returncode == 0, f"axial {' '.join(command)}: {done.stderr}")
    return done.stdout


def by_hand(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), file.read()


def check_events(path):
    events = EventAccumulator(path, size_guidance={"scalars": 0})
    events.Reload()
    tags = set(events.Tags()["scalars"])
    with open(os.path.join(path, "metrics.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("train_loss", "train_top1", "val_loss", "val_top1", "lr", "images_per_second"):
        check(f"epoch/{name}" in tags, f"TensorBoard does not see epoch/{name}, only {sorted(tags)}")
        seen = [(e.step, numpy.float32(e.value)) for e in events.Scalars(f"epoch/{name}")]
        rows_of = [(int(row["step"]), numpy.float32(row[name])) for row in rows]
        check(seen == rows_of, f"epoch/{name}: TensorBoard reads {seen}, metrics.csv has {rows_of}")
    for name in ("train/loss", "train/lr"):
        steps = [e.step for e in events.Scalars(name)]
        check(steps == sorted(set(steps)) and steps[-1] == int(rows[-1]["step"]), f"{name}: steps {steps}")
    print(f"TensorBoard: {len(tags)} curves, {len(rows)} epochs, as metrics.csv has them")


def check_tensors(path):
    header, data = by_hand(path)
    metadata = header.pop("__metadata__")
    with safe_open(path, framework="numpy") as file:
        check(set(file.keys()) == set(header), f"{path}: other names")
        check(file.metadata() == metadata, f"{path}: other metadata")
        for name, entry in header.items():
            tensor = file.get_tensor(name)
            begin, end = entry["data_offsets"]
            check(list(tensor.shape) == entry["shape"], f"{path}: {name}: shape {tensor.shape}")
            check(tensor.tobytes() == data[begin:end], f"{path}: {name}: other numbers")
            check(tensor.dtype.kind != "f" or numpy.isfinite(tensor).all(), f"{path}: {name}: not finite")
    print(f"safetensors: {os.path.basename(path)}, {len(header)} tensors")


with tempfile.TemporaryDirectory() as folder:
    run("train", "-c", configuration, "-o", "run", "--epochs", "3", "--device", "cpu", "train.log_every=2",
        "data.synthetic_train=256", "data.synthetic_test=64", "--stop-after", "1.5")
    run("train", "--resume", "run")  # what was written after the checkpoint would be seen twice
    check_events(os.path.join(folder, "run"))
    for name in ("best", "last"):
        check_tensors(os.path.join(folder, "run", "checkpoints", f"{name}.safetensors"))
    run("export", "run", "-o", "weights.safetensors")
    exported = os.path.join(folder, "weights.safetensors")
    check_tensors(exported)
    # The other way round: a file that safetensors itself wrote.
    with safe_open(exported, framework="numpy") as file:
        save_file({name: file.get_tensor(name) for name in file.keys()}, os.path.join(folder, "theirs.safetensors"),
                  file.metadata())
    check("head.weight" in run("info", "theirs.safetensors"), "axial info does not read what safetensors wrote")
    run("train", "-c", configuration, "-o", "second", "--epochs", "1", "--device", "cpu", "data.synthetic_train=256",
        "data.synthetic_test=64", "train.init_from=theirs.safetensors")
    print("safetensors: what it writes is read")
