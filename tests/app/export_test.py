"""`axial export`, loaded into plain PyTorch: the same names, and the same probabilities as `axial predict`.

    python3 tests/app/export_test.py PROGRAM SMOKE_YAML [--torch VERSION]

Exit code 77, with the reason, where python3 has no such torch. The modules here are also what to copy for using an
exported model in Python: nothing but torch is imported.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import zlib


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(77)


parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("configuration")
parser.add_argument("--torch", default="2.11.0")
arguments = parser.parse_args()

try:
    import torch
except Exception as error:  # an installation that is not whole raises more than ImportError
    skip(f"{sys.executable} cannot import torch ({str(error).splitlines()[0]})")
if torch.__version__.split("+")[0] != arguments.torch:
    skip(f"{sys.executable} has torch {torch.__version__}, expected {arguments.torch}")

from torch import nn
from torch.nn import functional as F


def read_safetensors(path):
    """Tensors and metadata; the package `safetensors` does the same."""
    types = {"F32": torch.float32, "I64": torch.int64}
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), bytearray(file.read())
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = torch.frombuffer(data[begin:end], dtype=types[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


class Attention(nn.Module):
    """Rows, then columns, of x[B, H, W, D]: y = x + scale * (W_out softmax(q k^T / sqrt(d) + bias) v + b_out)."""

    def __init__(self, dim, heads, height, width, rotary_base=None, layer_scale=False):
        super().__init__()
        self.heads, self.rotary_base = heads, rotary_base
        for name, length in ("row", width), ("col", height):
            setattr(self, f"{name}_norm", nn.LayerNorm(dim))
            setattr(self, f"{name}_qkv", nn.Linear(dim, 3 * dim, bias=False))
            setattr(self, f"{name}_out", nn.Linear(dim, dim))
            setattr(self, f"{name}_bias", nn.Parameter(torch.zeros(heads, 2 * length - 1)))
            self.register_parameter(f"{name}_scale", nn.Parameter(torch.zeros(dim)) if layer_scale else None)

    def turned(self, t):  # q or k [N, h, L, d]: rotary position embedding (model.rotary)
        if self.rotary_base is None:
            return t
        frequency = self.rotary_base ** (-torch.arange(0, t.shape[-1], 2) / t.shape[-1])
        angle = torch.arange(t.shape[2])[:, None] * frequency
        even, odd = t[..., 0::2], t[..., 1::2]
        turned = even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()
        return torch.stack(turned, -1).flatten(-2)

    def along(self, name, x):  # lines [N, L, D]
        lines, length, dim = x.shape
        norm, qkv, out, bias, scale = (getattr(self, f"{name}_{p}") for p in ("norm", "qkv", "out", "bias", "scale"))
        q, k, v = qkv(norm(x)).view(lines, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.turned(q), self.turned(k)
        token = torch.arange(length)
        relative = bias[:, token[:, None] - token[None, :] + length - 1]
        p = (q @ k.transpose(-1, -2) * (dim // self.heads) ** -0.5 + relative).softmax(-1)
        branch = out((p @ v).transpose(1, 2).reshape(lines, length, dim))
        return x + (branch if scale is None else scale * branch)

    def forward(self, x):
        x = self.along("row", x.flatten(0, 1)).view(x.shape)
        turned = x.transpose(1, 2)
        return self.along("col", turned.flatten(0, 1)).view(turned.shape).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, dim, heads, hidden, height, width, rotary_base=None, layer_scale=False):
        super().__init__()
        self.attention = Attention(dim, heads, height, width, rotary_base, layer_scale)
        self.mlp_scale = nn.Parameter(torch.zeros(dim)) if layer_scale else None
        self.mlp_norm, self.mlp_up, self.mlp_down = nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        x = self.attention(x)
        branch = self.mlp_down(F.gelu(self.mlp_up(self.mlp_norm(x))))
        return x + (branch if self.mlp_scale is None else self.mlp_scale * branch)


class Merge(nn.Module):
    """Two by two tokens become one; odd sizes are padded with zeros."""

    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4 * dim_in), nn.Linear(4 * dim_in, dim_out, bias=False)

    def forward(self, x):
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        batch, height, width, dim = x.shape
        x = x.view(batch, height // 2, 2, width // 2, 2, dim).transpose(2, 3).flatten(3)
        return self.linear(self.norm(x))


class Classifier(nn.Module):
    """Of a convolution with batch normalisation as the stem (model.stem=conv, no stem_channels)."""

    def __init__(self, channels, height, width, classes, dim, heads, depth, mlp_ratio=2, stride=2, rotary_base=None,
                 layer_scale=False):
        super().__init__()
        self.stem = nn.Module()
        self.stem.conv0 = nn.Conv2d(channels, dim[0], 3, stride, 1, bias=False)
        self.stem.norm0 = nn.BatchNorm2d(dim[0])
        height, width = (height - 1) // stride + 1, (width - 1) // stride + 1
        self.row_pos = nn.Parameter(torch.zeros(height, 1, dim[0]))
        self.col_pos = nn.Parameter(torch.zeros(1, width, dim[0]))
        self.blocks, self.merges, self.depth = nn.ModuleList(), nn.ModuleList(), depth
        for stage, (width_of, heads_of, blocks) in enumerate(zip(dim, heads, depth)):
            if stage > 0:
                self.merges.append(Merge(dim[stage - 1], width_of))
                height, width = (height + 1) // 2, (width + 1) // 2
            for _ in range(blocks):
                self.blocks.append(Block(width_of, heads_of, int(mlp_ratio * width_of), height, width, rotary_base,
                                         layer_scale))
        self.norm, self.head = nn.LayerNorm(dim[-1]), nn.Linear(dim[-1], classes)

    def forward(self, images):
        x = F.relu(self.stem.norm0(self.stem.conv0(images))).permute(0, 2, 3, 1)
        x = x + self.row_pos + self.col_pos
        number = 0
        for stage, blocks in enumerate(self.depth):
            x = x if stage == 0 else self.merges[stage - 1](x)
            for _ in range(blocks):
                x = self.blocks[number](x)
                number += 1
        return self.head(self.norm(x).mean((1, 2)))


def write_png(path, pixels):  # uint8 [H, W], gray
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape
    rows = b"".join(b"\0" + bytes(row.tolist()) for row in pixels)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)))
        file.write(chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def run(*command):
    done = subprocess.run([program, *command], capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise SystemExit(f"axial {' '.join(command)}: {done.stderr}")
    return done.stdout


program, configuration = os.path.abspath(arguments.program), os.path.abspath(arguments.configuration)
for overrides, parts in (([], {}),
                         (["model.rotary=true", "model.rotary_base=50", "model.layer_scale=0.5"],
                          dict(rotary_base=50.0, layer_scale=True))):
    with tempfile.TemporaryDirectory() as folder:
        run("train", "-c", configuration, "-o", "run", "--epochs", "1", "--device", "cpu",
            "data.synthetic_train=256", "data.synthetic_test=64", *overrides)
        run("export", "run", "-o", "weights.safetensors")
        tensors, metadata = read_safetensors(os.path.join(folder, "weights.safetensors"))
        image, classes = json.loads(metadata["axial.image"]), json.loads(metadata["axial.classes"])
        size = image["height"], image["width"]
        model = Classifier(image["channels"], *size, len(classes), dim=[16, 32], heads=[2, 4], depth=[1, 1],
                           **parts).eval()
        model.load_state_dict(tensors)  # strict: every name, and no other

        torch.manual_seed(0)
        worst = 0.0
        pictures = torch.randint(0, 256, (8, *size), dtype=torch.uint8)
        names = [f"{i}.png" for i in range(len(pictures))]
        for name, picture in zip(names, pictures):
            write_png(os.path.join(folder, name), picture)
        answers = run("predict", "run", *names, "--top", str(len(classes)), "--format", "jsonl", "--device", "cpu")
        for line, picture in zip(answers.splitlines(), pictures, strict=True):
            pixels = (picture.float() / 255 - image["mean"][0]) / image["std"][0]
            with torch.no_grad():
                expected = model(pixels[None, None]).softmax(1)[0]
            found = {entry["class"]: entry["probability"] for entry in json.loads(line)["classes"]}
            for name, probability in zip(classes, expected.tolist(), strict=True):
                worst = max(worst, abs(found[name] - probability))
        print(f"largest difference of a probability {' '.join(overrides)}: {worst:.2e}")
        if worst > 1e-5:
            raise SystemExit("axial export: PyTorch computes other probabilities than axial predict")
