"""One markdown table of `axial bench` and of its peers in PyTorch (layer.py), one after the other on one GPU.

Runs when it is asked to, never as a test. Needs a GPU and a built axial; without PyTorch the peers' columns stay
empty and the table says so.

usage: python3 tests/bench/table.py [--shapes SHAPES] [--dtypes TYPES] [--axial build/axial] [--output FILE]
       e.g. --shapes seed,train64,4,64,64,128,4 --dtypes bfloat16,tf32
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = "seed,train64,512x28x28,512x14x14,train128,mid,long"
# Up to so many tokens launches decide; torch.compile does best there when a whole call is captured by hand.
FEW_TOKENS = 16384
PEERS = {
    True: ("default", "compile_graph,compile_naive_graph"),
    False: ("reduce-overhead", "compile,compile_naive"),
}


def say(text):
    print(f"table.py: {text}", file=sys.stderr, flush=True)


def run_axial(a, folder):
    """The document of `axial bench --json`, or None."""
    path = os.path.join(folder, "axial.json")
    command = [a.axial, "bench", "--device", "cuda", "--shapes", a.shapes, "--dtype", a.dtypes, "--json", path]
    say(" ".join(command[:-2]))
    try:
        code = subprocess.run(command, stdout=sys.stderr).returncode
    except OSError as e:
        return say(f"missing: {a.axial} ({e.strerror}); build it, or name it with --axial")
    if code != 0:
        return say(f"axial bench ended with exit code {code}: see its line above (without a GPU there is no table)")
    with open(path) as file:
        return json.load(file)


def run_peers(cases, folder):
    """The results of layer.py on the shapes and types of `cases`, and what is missing (None: nothing)."""
    found = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True)
    if found.returncode != 0:
        return {}, f"PyTorch is missing in {sys.executable} (pip install torch==2.11.0)"
    peers, problem = {}, None
    for few, (mode, variants) in PEERS.items():
        chosen = [r for r in cases if (r["sizes"][0] * r["sizes"][1] * r["sizes"][2] <= FEW_TOKENS) == few]
        if not chosen:
            continue
        path = os.path.join(folder, f"peers-{mode}.json")
        shapes = list(dict.fromkeys(",".join(map(str, r["sizes"])) for r in chosen))
        dtypes = list(dict.fromkeys(r["dtype"] for r in chosen))
        command = [sys.executable, os.path.join(HERE, "layer.py"), "--shapes", ",".join(shapes), "--dtypes",
                   ",".join(dtypes), "--variants", variants, "--mode", mode, "--json", path]
        say(" ".join(command[1:-2]))
        code = subprocess.run(command, stdout=sys.stderr).returncode
        if code != 0:
            problem = f"layer.py ended with exit code {code}"
            continue
        with open(path) as file:
            document = json.load(file)
        for row in document["results"]:
            row["torch"] = document["torch"]
            peers.setdefault((tuple(row["sizes"]), row["dtype"]), []).append(row)
    return peers, problem


def call_ms(entry):
    """One call: eager or as one replay. The amortised time is not what the peers are timed by."""
    return min(t["median_ms"] for t in (entry["eager"], entry["replay"]) if t)


def pair(forward, both, pattern="{:.3f}"):
    texts = [pattern.format(v) if v is not None else "-" for v in (forward, both)]
    return "-" if texts == ["-", "-"] else " / ".join(texts)


def table_row(ours, reference, peers):
    def each(result, value):  # forward, forward + backward; None where there is none
        return [value(result[d]) if result and result[d] else None for d in ("forward", "forward_backward")]

    def ratio(above, below):
        return [u / v if u and v else None for u, v in zip(above, below)]

    calls = each(ours, call_ms)
    best, names, memory = [], [], None
    for key in ("forward_ms", "forward_backward_ms"):
        ran = [p for p in peers if p.get(key)]
        first = min(ran, key=lambda p: p[key], default=None)
        best.append(first[key] if first else None)
        names.append(first["variant"] if first else "-")
        memory = first["peak_mib"] if first else None
    which = names[0] if names[0] == names[1] else " / ".join(names)
    mib = "-" if ours["peak_bytes"] is None else f"{ours['peak_bytes'] / 2**20:.0f}"
    sizes = ",".join(map(str, ours["sizes"]))
    return [
        sizes if ours["shape"] == sizes else f"{sizes} (`{ours['shape']}`)", ours["dtype"], pair(*calls),
        pair(*each(ours, lambda e: e["amortised"] and e["amortised"]["median_ms"])),
        pair(*best), which, pair(*ratio(best, calls), "{:.2f} ×"), pair(*each(reference, call_ms)),
        pair(*each(ours, lambda e: e["floor_ms"])), pair(*each(ours, lambda e: e["to_floor"]), "{:.2f}"), mib,
        "-" if memory is None else f"{memory:.0f}", ours["kernel"] if "problem" not in ours else ours["problem"],
    ]


COLUMNS = ["B,H,W,D,heads", "type", "axial", "amortised", "best peer", "which", "peer / axial", "reference", "floor",
           "× floor", "MiB", "peer's MiB", "kernel"]


def table(document, peers, problem):
    results = document["results"]
    reference = {(tuple(r["sizes"]), r["dtype"]): r for r in results if r["backend"] == "reference"}
    rates, device = document["rates"], document["device"]
    matrix = ", ".join(f"{v * 1e-12:.0f} TFLOP/s {k}" for k, v in rates["matrix_operations_per_second"].items())
    versions = sorted({p["torch"] for rows in peers.values() for p in rows})
    lines = [
        f"{device['name']}, libtorch {document['libtorch']}, axial {document['axial']}, {document['date'][:10]}. "
        f"Milliseconds forward / forward + backward, medians of {document['repeats']} calls: one call, eager or as "
        "one graph replay, whichever is faster; amortised: a replay among many; × floor: the fastest of all. Peers: "
        + (f"PyTorch {', '.join(versions)}, tests/bench/layer.py." if versions else f"not run: {problem}.")
        + (f" Incomplete: {problem}." if versions and problem else ""),
        "",
        f"Floor at {rates['copy_bytes_per_second'] * 1e-12:.2f} TB/s, {matrix}, "
        f"{rates['exponentials_per_second'] * 1e-12:.2f} T exponentials/s.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    for ours in results:
        if ours["backend"] == "fused":
            key = (tuple(ours["sizes"]), ours["dtype"])
            lines.append("| " + " | ".join(table_row(ours, reference.get(key), peers.get(key, []))) + " |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description="axial bench and its peers in PyTorch, in one markdown table")
    p.add_argument("--shapes", default=SHAPES)
    p.add_argument("--dtypes", default="bfloat16")
    p.add_argument("--axial", default=os.path.join(HERE, "..", "..", "build", "axial"))
    p.add_argument("--output", default=None, help="markdown file (default: standard output)")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        document = run_axial(a, folder)
        if document is None:
            return 1
        peers, problem = run_peers([r for r in document["results"] if r["backend"] == "fused"], folder)
    if problem:
        say(f"missing: {problem}")
    text = table(document, peers, problem)
    if a.output:
        with open(a.output, "w") as file:
            file.write(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
