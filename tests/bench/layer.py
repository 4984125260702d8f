"""Peers on one GPU: the axial layer (row pass, column pass; LN -> QKV -> MHA -> out -> residual) in PyTorch.

Prints, for each shape and type, the median milliseconds of forward and of forward+backward for each peer, and the
peak memory that it adds. Shapes and types are written as `axial bench` writes them.
Variants: naive (composed softmax), sdpa, flash, eff, cudnn, fold (columns folded into heads, no copy), each also with
compile_ before it (torch.compile) and _graph behind it (captured in a CUDA graph); "compile" alone is compiled SDPA.
seed is the attention kernel that the project started from (seed_kernel.cu; forward, float32).
The best peers: --mode default --variants compile_graph,compile_naive_graph where launches decide (seed),
--mode reduce-overhead --variants compile,compile_naive elsewhere.

usage: python3 layer.py [--shapes NAME,B,H,W,D,HEADS,...] [--dtypes bfloat16,float16,tf32,float32] [--variants a,b]
                        [--mode default|reduce-overhead|max-autotune-no-cudagraphs] [--reps N] [--json FILE]
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = {  # B, H, W, D, heads
    "seed": (4, 32, 32, 64, 4),
    "train64": (512, 32, 32, 64, 4),
    "train128": (256, 32, 32, 128, 4),
    "train192": (256, 16, 16, 192, 6),
    "512x28x28": (512, 28, 28, 64, 4),
    "512x14x14": (512, 14, 14, 64, 4),
    "mid": (64, 64, 64, 128, 4),
    "long": (16, 128, 128, 128, 8),
    "xlong": (4, 256, 256, 256, 8),
}
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float32, "float32": torch.float32}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "eff": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


class Axial(nn.Module):
    def __init__(self, D, h, attn, seed=None):
        super().__init__()
        self.h, self.d, self.attn, self.seed = h, D // h, attn, seed
        self.row_norm, self.col_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.row_qkv, self.col_qkv = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, 3 * D, bias=False)
        self.row_out, self.col_out = nn.Linear(D, D), nn.Linear(D, D)

    def mha(self, x, norm, qkv, out):
        N, L, D = x.shape
        q, k, v = qkv(norm(x)).view(N, L, 3, self.h, self.d).permute(2, 0, 3, 1, 4).unbind(0)
        if self.attn == "naive":
            a = torch.softmax((q @ k.transpose(-1, -2)) * self.d**-0.5, -1) @ v
        elif self.attn == "seed":
            a = self.seed(q.contiguous(), k.contiguous(), v.contiguous(), self.d**-0.5)
        elif self.attn in BACKENDS:
            with sdpa_kernel(BACKENDS[self.attn]):
                a = F.scaled_dot_product_attention(q, k, v)
        else:
            a = F.scaled_dot_product_attention(q, k, v)
        return out(a.transpose(1, 2).reshape(N, L, D))

    def col_fold(self, x):
        """Column pass with no copy: columns folded into heads, q k v as three projections of strided views."""
        B, H, W, D = x.shape
        y, w = self.col_norm(x), self.col_qkv.weight.view(3, D, D)
        q, k, v = (F.linear(y, w[i]).view(B, H, W * self.h, self.d).transpose(1, 2) for i in range(3))
        a = F.scaled_dot_product_attention(q, k, v)
        return self.col_out(a.transpose(1, 2).reshape(B, H, W, D))

    def forward(self, x):
        B, H, W, D = x.shape
        rows = self.mha(x.reshape(B * H, W, D), self.row_norm, self.row_qkv, self.row_out)
        x = x + rows.view(B, H, W, D)
        if self.attn == "fold":
            return x + self.col_fold(x)
        c = x.permute(0, 2, 1, 3).reshape(B * W, H, D)
        return x + self.mha(c, self.col_norm, self.col_qkv, self.col_out).view(B, W, H, D).permute(0, 2, 1, 3)


def ms(fn, budget=0.6):
    for _ in range(5):
        fn()
    torch.cuda.synchronize()
    t0 = time.time()
    fn()
    torch.cuda.synchronize()
    n = max(10, min(300, int(budget / max(time.time() - t0, 1e-5))))
    ts = []
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        fn()
        b.record()
        ts.append((a, b))
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in ts)


def graphed(fn, reps=1):
    """Median time of a CUDA-graph replay of `reps` calls (removes launch gaps), per call."""
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            fn()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(reps):
            fn()
    return ms(g.replay) / reps


def parse_shapes(text):
    """Names and B,H,W,D,heads in any order -> [(name, sizes)]."""
    words, shapes = text.split(","), []
    while words:
        if words[0] in SHAPES:
            shapes.append((words[0], SHAPES[words.pop(0)]))
        else:
            five, words = words[:5], words[5:]
            if len(five) < 5 or not all(w.isdigit() and int(w) > 0 for w in five):
                expected = f"{', '.join(SHAPES)} or B,H,W,D,heads"
                raise SystemExit(f"layer.py: --shapes: {','.join(five)}: expected {expected}")
            shapes.append((",".join(five), tuple(int(w) for w in five)))
    return shapes


def load_seed():
    from torch.utils.cpp_extension import load_inline

    signature = "torch::Tensor fused_attention_cuda(torch::Tensor Q, torch::Tensor K, torch::Tensor V, double scale);"
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "seed_kernel.cu")) as source:
        module = load_inline(name="seed_kernel", cpp_sources=[signature], cuda_sources=[source.read()],
                             functions=["fused_attention_cuda"], extra_cuda_cflags=["-O3"])
    return module.fused_attention_cuda


def measure(sizes, dtype, variant, mode, reps, seed):
    """-> forward ms, forward+backward ms (None where there is no backward), peak MiB."""
    B, H, W, D, h = sizes
    torch.manual_seed(0)
    torch._dynamo.reset()
    core = variant.removeprefix("compile").strip("_").removesuffix("graph").strip("_")
    mod = Axial(D, h, core or "sdpa", seed).cuda().to(dtype)
    x = torch.randn(B, H, W, D, device="cuda", dtype=dtype, requires_grad=True)
    dy = torch.randn_like(x)
    fn = torch.compile(mod, mode=None if mode == "default" else mode) if variant.startswith("compile") else mod

    def fwd():
        with torch.no_grad():
            return fn(x)

    def both():
        for q in mod.parameters():
            q.grad = None
        x.grad = None
        fn(x).backward(dy)

    timed = (lambda f: graphed(f, reps)) if variant.endswith("graph") else ms
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    forward, backward = timed(fwd), None if core == "seed" else timed(both)
    return forward, backward, (torch.cuda.max_memory_allocated() - base) / 2**20


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--shapes", default=",".join(SHAPES))
    p.add_argument("--dtypes", default="bfloat16,tf32,float32")
    p.add_argument("--variants", default="sdpa,compile,compile_naive")
    p.add_argument("--mode", default="reduce-overhead")
    p.add_argument("--reps", type=int, default=1, help="calls in one captured graph")
    p.add_argument("--json", default=None)
    a = p.parse_args()
    shapes, dtypes, variants = parse_shapes(a.shapes), a.dtypes.split(","), a.variants.split(",")
    if not set(dtypes) <= set(TYPES):
        raise SystemExit(f"layer.py: --dtypes: {a.dtypes}: expected {', '.join(TYPES)}")
    if not torch.cuda.is_available():
        raise SystemExit("layer.py: PyTorch sees no CUDA device")
    seed = load_seed() if "seed" in variants else None

    results = []
    for name, sizes in shapes:
        for dtype in dtypes:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            for v in variants:
                if v == "seed" and (TYPES[dtype] != torch.float32 or max(sizes[1:3]) > 64):
                    continue  # its limits
                row = {"shape": name, "sizes": sizes, "dtype": dtype, "variant": v, "mode": a.mode}
                try:
                    fwd, both, mib = measure(sizes, TYPES[dtype], v, a.mode, a.reps, seed)
                    row |= {"forward_ms": fwd, "forward_backward_ms": both, "peak_mib": mib}
                    shown = f"{fwd:8.4f} ms  {both:8.4f} ms" if both else f"{fwd:8.4f} ms         -   "
                    print(f"{name:12s} {dtype:9s} {v:20s} {shown}  {mib:7.0f} MiB", flush=True)
                except Exception as e:  # a peer that cannot run a shape is a line in the table
                    row["problem"] = str(e).split("\n")[0][:200]
                    print(f"{name:12s} {dtype:9s} {v:20s} failed: {row['problem']}", flush=True)
                results.append(row)
                torch.cuda.empty_cache()
    if a.json:
        with open(a.json, "w") as file:
            document = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "results": results}
            json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
