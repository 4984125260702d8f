"""The peer of a whole training step: the axial classifier in PyTorch, compiled, with its data on the GPU.

3x3 stem, learned row and column position embeddings, `depth` blocks of (row pass, column pass, MLP), final LayerNorm,
mean pool, linear head. Prints milliseconds a step and images a second for eager, compiled and compiled with CUDA
graphs, under bfloat16 autocast with float32 parameters; with --pure the parameters are bfloat16 too.

usage: python3 classifier.py [--batch 512] [--dim 64] [--heads 4] [--depth 4] [--mlp 2] [--size 28] [--channels 1]
                             [--stride 1] [--classes 10] [--pure] [--variants eager,compile,graphs]
"""
import argparse
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

IMAGES = 60000


class Pass(nn.Module):
    def __init__(self, D, h):
        super().__init__()
        self.h, self.norm = h, nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)

    def forward(self, x):  # [N, L, D]
        N, L, D = x.shape
        q, k, v = self.qkv(self.norm(x)).view(N, L, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        if L <= 64:  # composed softmax is the faster one there
            s = torch.softmax((q @ k.transpose(-1, -2)) * (D // self.h) ** -0.5, -1) @ v
        else:
            s = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(s.transpose(1, 2).reshape(N, L, D))


class Block(nn.Module):
    def __init__(self, D, h, r):
        super().__init__()
        self.row, self.col = Pass(D, h), Pass(D, h)
        self.mlp = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, r * D), nn.GELU(), nn.Linear(r * D, D))

    def forward(self, x):
        B, H, W, D = x.shape
        x = self.row(x.reshape(B * H, W, D)).view(B, H, W, D)
        x = self.col(x.transpose(1, 2).reshape(B * W, H, D)).view(B, W, H, D).transpose(1, 2)
        return x + self.mlp(x)


class Classifier(nn.Module):
    def __init__(self, a):
        super().__init__()
        n = (a.size + a.stride - 1) // a.stride
        self.stem = nn.Conv2d(a.channels, a.dim, 3, a.stride, 1)
        self.row_pos = nn.Parameter(torch.randn(n, 1, a.dim) * 0.02)
        self.col_pos = nn.Parameter(torch.randn(1, n, a.dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(a.dim, a.heads, a.mlp) for _ in range(a.depth)])
        self.norm, self.head = nn.LayerNorm(a.dim), nn.Linear(a.dim, a.classes)

    def forward(self, x):
        x = self.stem(x).permute(0, 2, 3, 1)
        x = x + (self.row_pos + self.col_pos).to(x.dtype)  # the residual stream stays in the stem's type
        return self.head(self.norm(self.blocks(x)).mean((1, 2)))


def measure(a, variant, images, labels):
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch.cuda.reset_peak_memory_stats()
    m = Classifier(a).cuda().to(torch.bfloat16 if a.pure else torch.float32)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True, capturable=True)
    net = m
    if variant != "eager":
        net = torch.compile(m, mode="reduce-overhead" if variant == "graphs" else None)

    def step():
        i = torch.randint(0, IMAGES, (a.batch,), device="cuda")
        x = images[i].float().sub_(127.5).div_(64)
        if a.pure:
            x = x.bfloat16()
        with torch.autocast("cuda", torch.bfloat16, enabled=not a.pure):
            loss = F.cross_entropy(net(x).float(), labels[i], label_smoothing=0.1)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)

    for _ in range(6):
        step()
    torch.cuda.synchronize()
    ts = []
    for _ in range(30):
        t = time.perf_counter()
        step()
        torch.cuda.synchronize()
        ts.append(time.perf_counter() - t)
    t = statistics.median(ts)
    peak = torch.cuda.max_memory_allocated() / 2**20
    print(f"{variant:8s} {t*1e3:8.2f} ms/step {a.batch/t:10.0f} images/s  peak {peak:.0f} MiB", flush=True)


def main():
    p = argparse.ArgumentParser()
    defaults = dict(batch=512, dim=64, heads=4, depth=4, mlp=2, size=28, channels=1, stride=1, classes=10)
    for name, value in defaults.items():
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--pure", action="store_true")
    p.add_argument("--variants", default="eager,compile,graphs")
    a = p.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("classifier.py: PyTorch sees no CUDA device")
    images = torch.randint(0, 256, (IMAGES, a.channels, a.size, a.size), dtype=torch.uint8, device="cuda")
    labels = torch.randint(0, a.classes, (IMAGES,), device="cuda")
    print(f"params {sum(q.numel() for q in Classifier(a).parameters())/1e6:.3f} M")
    for variant in a.variants.split(","):
        measure(a, variant, images, labels)


if __name__ == "__main__":
    main()
