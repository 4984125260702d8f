"""torch.ops.axial.* held against plain PyTorch: opcheck, every value and gradient, eager and under torch.compile.

    python3 tests/model/torch_ops_test.py LIBRARY [--torch VERSION] [--devices cpu,cuda] [unittest's arguments]

Exit code 77, with the reason, where python3 has no such torch; a device or a compiler that is missing is skipped
alone, with the reason.
"""

import argparse
import copy
import itertools
import sys
import unittest


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(77)


parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("--torch", default="2.11.0")
parser.add_argument("--devices", default="cpu,cuda")
arguments, unittest_arguments = parser.parse_known_args()

try:
    import torch
except Exception as error:  # an installation that is not whole raises more than ImportError
    skip(f"{sys.executable} cannot import torch ({str(error).splitlines()[0]})")
if torch.__version__.split("+")[0] != arguments.torch:
    skip(f"{sys.executable} has torch {torch.__version__}, the library is made for {arguments.torch}")

from torch import nn
from torch.nn import functional as F

torch.ops.load_library(arguments.library)

DEVICES = []
for name in arguments.devices.split(","):
    if name == "cuda" and not torch.cuda.is_available():
        print("cuda: not tested, there is no GPU here", flush=True)
    else:
        DEVICES.append(name)

# The table of model/tolerance.h: y - x (or any value), dx - dy (or any activation's gradient), parameter gradients.
TOLERANCES = {
    torch.float64: (1e-12, 1e-12, 1e-12),
    torch.float32: (1e-5, 1e-5, 1e-5),
    torch.bfloat16: (1.5e-2, 2.5e-2, 2e-2),
    torch.float16: (1.5e-2 / 8, 2.5e-2 / 8, 2e-2 / 8),
}
ROWS, COLUMNS = 2, 1  # dimensions of x[B, H, W, D]


def relative_error(out, ref):
    out, ref = out.detach().double(), ref.detach().double()
    floor = 1e-3 * ref.numel() ** 0.5
    return ((out - ref).norm() / max(ref.norm().item(), floor)).item() if ref.numel() else 0.0


# --- plain PyTorch ------------------------------------------------------------------------------------


def plain_attention(q, k, v, bias, axis, scale=None, causal=False):  # [B, H, W, h, d]
    if axis == COLUMNS:
        return plain_attention(*(t.transpose(1, 2) for t in (q, k, v)), bias, ROWS, scale, causal).transpose(1, 2)
    q, k, v = (t.transpose(2, 3) for t in (q, k, v))  # [B, H, h, L, d]
    length = q.shape[3]
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    token = torch.arange(length, device=q.device)
    if bias is not None:
        scores = scores + bias.to(q.dtype)[:, token[:, None] - token + length - 1]
    if causal:
        scores = scores.masked_fill(token > token[:, None], float("-inf"))
    return (scores.softmax(-1) @ v).transpose(2, 3)


def plain_turned(t, table, axis):  # t [B, H, W, h, d], table [L, d/2, 2]
    turns = torch.view_as_complex(table)[:, None]
    points = torch.view_as_complex(t.unflatten(-1, (-1, 2)).to(table.dtype))
    return torch.view_as_real(points * (turns[:, None] if axis == COLUMNS else turns)).flatten(-2).to(t.dtype)


def plain_pass(x, norm_weight, norm_bias, qkv_weight, out_weight, out_bias, bias, axis, heads, eps=1e-5, rotary=None,
               layer_scale=None):
    cast = lambda t: t.to(x.dtype)
    z = F.layer_norm(x, x.shape[-1:], cast(norm_weight), cast(norm_bias), eps)
    q, k, v = F.linear(z, cast(qkv_weight)).unflatten(-1, (3, heads, -1)).unbind(3)
    if rotary is not None:
        q, k = (plain_turned(t, rotary, axis) for t in (q, k))
    o = plain_attention(q, k, v, bias, axis).flatten(3)
    u = F.linear(o, cast(out_weight), cast(out_bias))
    return x + (u if layer_scale is None else u * cast(layer_scale))


class AxialAttention(nn.Module):
    """The layer with the parameters' names that a checkpoint has."""

    def __init__(self, dim, heads, one_pass, height=None, width=None):
        super().__init__()
        self.heads, self.one_pass = heads, one_pass
        for name, length in (("row", width), ("col", height)):
            setattr(self, f"{name}_norm", nn.LayerNorm(dim))
            setattr(self, f"{name}_qkv", nn.Linear(dim, 3 * dim, bias=False))
            setattr(self, f"{name}_out", nn.Linear(dim, dim))
            bias = None if length is None else nn.Parameter(torch.zeros(heads, 2 * length - 1))
            self.register_parameter(f"{name}_bias", bias)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name.endswith("norm.weight"):
                    p.copy_(1 + 0.3 * torch.randn_like(p))
                else:
                    spread = p.shape[1] ** -0.5 if name.endswith("weight") else 0.3
                    p.copy_(spread * torch.randn_like(p))

    def forward(self, x):
        p = self
        x = p.one_pass(x, p.row_norm.weight, p.row_norm.bias, p.row_qkv.weight, p.row_out.weight, p.row_out.bias,
                       p.row_bias, ROWS, p.heads, p.row_norm.eps)
        return p.one_pass(x, p.col_norm.weight, p.col_norm.bias, p.col_qkv.weight, p.col_out.weight, p.col_out.bias,
                          p.col_bias, COLUMNS, p.heads, p.col_norm.eps)


# --- inputs -------------------------------------------------------------------------------------------


def pass_inputs(shape, heads, axis, dtype, device, bias=False, parameters=None):
    """x and the parameters of one pass, all of them leaves that require gradients."""
    dim, length = shape[3], shape[axis]
    wide = parameters or (torch.float64 if dtype == torch.float64 else torch.float32)

    def leaf(*size, spread, centre=0.0, dtype=wide):
        t = centre + spread * torch.randn(size, dtype=torch.float64)
        return t.to(device, dtype).requires_grad_()

    return [leaf(*shape, spread=1, dtype=dtype), leaf(dim, spread=0.3, centre=1), leaf(dim, spread=0.3),
            leaf(3 * dim, dim, spread=dim**-0.5), leaf(dim, dim, spread=dim**-0.5), leaf(dim, spread=0.3),
            leaf(heads, max(2 * length - 1, 0), spread=0.5) if bias else None]


def core_inputs(shape, axis, dtype, device, bias=False):
    leaves = [torch.randn(shape, dtype=torch.float64).to(device, dtype).requires_grad_() for _ in range(3)]
    if not bias:
        return leaves + [None]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return leaves + [torch.randn(shape[3], 2 * shape[axis] - 1, dtype=wide, device=device).requires_grad_()]


def rotary_table(length, head_dim, base=100.0):
    frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()), -1)


def rng_on(device):
    return torch.tensor([3, 5], device=device)  # seed, offset


def in_float64(tensors):
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


PASS_NAMES = ["x", "norm_weight", "norm_bias", "qkv_weight", "out_weight", "out_bias", "bias"]
FORWARD_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static",
                  "test_aot_dispatch_dynamic")
BACKWARD_CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")


def inductor_works(device):
    """Inductor needs a C++ compiler and Python's headers on the CPU, Triton on a GPU."""
    try:
        torch.compile(lambda t: (t + 1).relu().sum(0), fullgraph=True)(torch.ones(3, 5, device=device))
    except Exception as error:
        return False, (str(error).strip() or type(error).__name__).splitlines()[0]
    return True, ""


class OnDevice:
    """The tests, once for each device; subclasses at the end of the file."""

    device = "cpu"

    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def assertClose(self, out, ref, tolerance, what):
        error = relative_error(out, ref)
        self.assertLessEqual(error, tolerance, f"{what}: relative error {error:.3g}")

    # --- opcheck ---

    def test_opcheck_pass(self):
        op = torch.ops.axial.axial_pass.default
        cases = [((2, 3, 5, 8), 2, torch.float64), ((1, 4, 1, 12), 3, torch.float32),
                 ((2, 14, 14, 64), 4, torch.bfloat16)]
        for (shape, heads, dtype), axis, bias in itertools.product(cases, (ROWS, COLUMNS), (False, True)):
            with self.subTest(shape=shape, dtype=dtype, axis=axis, bias=bias):
                inputs = pass_inputs(shape, heads, axis, dtype, self.device, bias)
                torch.library.opcheck(op, (*inputs, axis, heads), test_utils=FORWARD_CHECKS)

    def test_opcheck_pass_with_every_option(self):
        op = torch.ops.axial.axial_pass.default
        inputs = pass_inputs((3, 4, 6, 16), 2, ROWS, torch.float32, self.device, bias=True)
        scale = torch.tensor([0.0, 2.0, 2.0], device=self.device)
        options = dict(eps=1e-6, dropout=0.25, rng=rng_on(self.device), stream=9, first_sample=4, sample_scale=scale)
        torch.library.opcheck(op, (*inputs, ROWS, 2), options, test_utils=FORWARD_CHECKS)
        options.update(rotary=rotary_table(6, 8).float().to(self.device), projection_dropout=0.25,
                       layer_scale=torch.rand(16, device=self.device, requires_grad=True))
        torch.library.opcheck(op, (*inputs, ROWS, 2), options, test_utils=FORWARD_CHECKS)
        torch.library.opcheck(op, (*inputs, ROWS, 2), dict(arithmetic=torch.bfloat16), test_utils=FORWARD_CHECKS)
        without_bias = (*inputs[:6], None)
        torch.library.opcheck(op, (*without_bias, ROWS, 2), options, test_utils=FORWARD_CHECKS)
        # x with other strides, few gradients wanted, no elements.
        x = inputs[0].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
        torch.library.opcheck(op, (x, *inputs[1:], ROWS, 2), test_utils=FORWARD_CHECKS)
        frozen = [t.detach() for t in inputs[1:]]
        torch.library.opcheck(op, (x, *frozen, ROWS, 2), test_utils=FORWARD_CHECKS)
        torch.library.opcheck(op, (x.detach()[:0].requires_grad_(), *inputs[1:], ROWS, 2), test_utils=FORWARD_CHECKS)

    def test_opcheck_pass_backward(self):
        op = torch.ops.axial.axial_pass_backward.default
        for bias in (False, True):
            for wanted in ([True] * 8, [True] + [False] * 7, [False, True] * 4):
                with self.subTest(bias=bias, wanted=wanted):
                    inputs = pass_inputs((2, 3, 5, 8), 2, COLUMNS, torch.float32, self.device, bias)
                    inputs = [None if t is None else t.detach() for t in inputs]
                    scale = torch.rand(8, device=self.device) if bias else None
                    table = rotary_table(3, 4).float().to(self.device) if bias else None
                    arithmetic = torch.bfloat16 if bias else None
                    rest = (COLUMNS, 2, 1e-5, 0.25, rng_on(self.device), 1, 0, None, table, scale, 0.25, arithmetic,
                            wanted)
                    dy = torch.randn_like(inputs[0])
                    torch.library.opcheck(op, (dy, *inputs, *rest), test_utils=BACKWARD_CHECKS)

    def test_opcheck_attention(self):
        shape = (2, 3, 5, 2, 4)
        for dtype, axis, bias in itertools.product((torch.float64, torch.bfloat16), (ROWS, COLUMNS), (False, True)):
            with self.subTest(dtype=dtype, axis=axis, bias=bias):
                inputs = core_inputs(shape, axis, dtype, self.device, bias)
                options = dict(scale=0.3, causal=True, dropout=0.25, rng=rng_on(self.device), stream=2)
                for chosen in ({}, options):
                    torch.library.opcheck(torch.ops.axial.attention.default, (*inputs, axis), chosen,
                                          test_utils=FORWARD_CHECKS)
                flat = [None if t is None else t.detach() for t in inputs]
                rest = (axis, None, False, 0.0, None, 0, 0)
                outputs = torch.ops.axial.attention_forward(*flat, *rest)
                torch.library.opcheck(torch.ops.axial.attention_forward.default, (*flat, *rest),
                                      test_utils=BACKWARD_CHECKS)
                for wanted in ([True] * 4, [False, True, False, False]):
                    torch.library.opcheck(torch.ops.axial.attention_backward.default,
                                          (torch.randn_like(flat[0]), *flat, *outputs, *rest, wanted),
                                          test_utils=BACKWARD_CHECKS)

    # --- values and gradients ---

    def test_pass_agrees_with_plain_pytorch(self):
        shapes = [((2, 14, 14, 64), 4), ((2, 5, 9, 48), 3), ((1, 1, 7, 8), 1)]
        if self.device == "cuda":
            shapes += [((2, 28, 28, 64), 4), ((1, 40, 70, 128), 2)]
        axes, biases = (ROWS, COLUMNS), (False, True)
        for dtype, (shape, heads), axis, bias in itertools.product(TOLERANCES, shapes, axes, biases):
            with self.subTest(dtype=dtype, shape=shape, axis=axis, bias=bias):
                inputs = pass_inputs(shape, heads, axis, dtype, self.device, bias)
                truth = in_float64(inputs)
                g = torch.randn(shape, device=self.device).to(dtype)
                y = torch.ops.axial.axial_pass(*inputs, axis, heads)
                expected = plain_pass(*truth, axis, heads)
                value, activation, parameter = TOLERANCES[dtype]
                self.assertEqual(y.dtype, dtype)
                self.assertClose(y.double() - truth[0], expected - truth[0], value, "y - x")
                y.backward(g)
                expected.backward(g.double())
                self.assertClose(inputs[0].grad.double() - g, truth[0].grad - g, activation, "dx - dy")
                for name, out, ref in list(zip(PASS_NAMES, inputs, truth))[1:]:
                    if out is not None:
                        self.assertEqual(out.grad.dtype, out.dtype)
                        self.assertClose(out.grad, ref.grad, parameter, f"d {name}")

    def test_pass_with_rotary_and_layer_scale_agrees_with_plain_pytorch(self):
        shape, heads = (2, 5, 9, 48), 3
        for dtype, axis, bias in itertools.product(TOLERANCES, (ROWS, COLUMNS), (False, True)):
            with self.subTest(dtype=dtype, axis=axis, bias=bias):
                inputs = pass_inputs(shape, heads, axis, dtype, self.device, bias)
                scale = (1 + 0.3 * torch.randn(48)).to(self.device, inputs[1].dtype).requires_grad_()
                *truth, true_scale = in_float64([*inputs, scale])
                table = rotary_table(shape[axis], 16).to(self.device)
                g = torch.randn(shape, device=self.device).to(dtype)
                y = torch.ops.axial.axial_pass(*inputs, axis, heads, rotary=table.to(scale.dtype), layer_scale=scale)
                expected = plain_pass(*truth, axis, heads, rotary=table, layer_scale=true_scale)
                value, activation, parameter = TOLERANCES[dtype]
                self.assertClose(y.double() - truth[0], expected - truth[0], value, "y - x")
                y.backward(g)
                expected.backward(g.double())
                self.assertClose(inputs[0].grad.double() - g, truth[0].grad - g, activation, "dx - dy")
                for name, out, ref in [*zip(PASS_NAMES, inputs, truth), ("layer_scale", scale, true_scale)][1:]:
                    if out is not None:
                        self.assertClose(out.grad, ref.grad, parameter, f"d {name}")

    def test_pass_with_a_float32_residual_agrees_with_plain_pytorch(self):
        shapes = [((2, 14, 14, 64), 4), ((2, 5, 9, 48), 3)]
        for arithmetic, (shape, heads), axis in itertools.product((torch.bfloat16, torch.float16), shapes,
                                                                  (ROWS, COLUMNS)):
            with self.subTest(arithmetic=arithmetic, shape=shape, axis=axis):
                inputs = pass_inputs(shape, heads, axis, torch.float32, self.device)
                with torch.no_grad():
                    inputs[0] += 100  # what 16 bits of x would hardly show
                truth = in_float64(inputs)
                g = torch.randn(shape, device=self.device)
                y = torch.ops.axial.axial_pass(*inputs, axis, heads, arithmetic=arithmetic)
                expected = plain_pass(*truth, axis, heads)
                value, activation, parameter = TOLERANCES[arithmetic]
                self.assertEqual(y.dtype, torch.float32)
                self.assertClose(y.double() - truth[0], expected - truth[0], value, "y - x")
                y.backward(g)
                expected.backward(g.double())
                self.assertClose(inputs[0].grad.double() - g, truth[0].grad - g, activation, "dx - dy")
                for name, out, ref in list(zip(PASS_NAMES, inputs, truth))[1:6]:
                    self.assertClose(out.grad, ref.grad, parameter, f"d {name}")
        with self.assertRaisesRegex(RuntimeError, "bfloat16 or float16, is Double"):
            torch.ops.axial.axial_pass(*inputs, axis, heads, arithmetic=torch.float64)
        with self.assertRaisesRegex(RuntimeError, "needs x in float32, is Double"):
            torch.ops.axial.axial_pass(*(t if t is None else t.double() for t in inputs), axis, heads,
                                       arithmetic=torch.bfloat16)

    def test_attention_agrees_with_plain_pytorch(self):
        no_yes = (False, True)
        for dtype, axis, bias, causal in itertools.product(TOLERANCES, (ROWS, COLUMNS), no_yes, no_yes):
            with self.subTest(dtype=dtype, axis=axis, bias=bias, causal=causal):
                inputs = core_inputs((2, 14, 9, 4, 16), axis, dtype, self.device, bias)
                truth = in_float64(inputs)
                g = torch.randn(inputs[0].shape, device=self.device).to(dtype)
                o = torch.ops.axial.attention(*inputs, axis, 0.3, causal)
                expected = plain_attention(*truth, axis, 0.3, causal)
                self.assertClose(o, expected, TOLERANCES[dtype][0], "o")
                o.backward(g)
                expected.backward(g.double())
                for name, out, ref in zip(("q", "k", "v", "bias"), inputs, truth):
                    if out is not None:
                        self.assertClose(out.grad, ref.grad, TOLERANCES[dtype][1], f"d {name}")

    def check_module(self, run, dtype, bias, shape=(2, 10, 12, 64), heads=4):
        """One training step of the module on `run(module)` against float64 plain PyTorch."""
        sizes = dict(height=shape[1], width=shape[2]) if bias else {}
        layer = AxialAttention(shape[3], heads, torch.ops.axial.axial_pass, **sizes).to(self.device, dtype)
        plain = copy.deepcopy(layer).double()
        plain.one_pass = plain_pass
        x = torch.randn(shape, device=self.device).to(dtype).requires_grad_()
        truth = x.detach().double().requires_grad_()
        g = torch.randn(shape, device=self.device).to(dtype)
        y, expected = run(layer)(x), plain(truth)
        value, activation, parameter = TOLERANCES[dtype]
        self.assertClose(y.double() - truth, expected - truth, value, "y - x")
        y.backward(g)
        expected.backward(g.double())
        self.assertClose(x.grad.double() - g, truth.grad - g, activation, "dx - dy")
        for (name, out), ref in zip(layer.named_parameters(), plain.parameters()):
            self.assertClose(out.grad, ref.grad, parameter, f"d {name}")

    def test_module_eager(self):
        for dtype, bias in itertools.product(TOLERANCES, (False, True)):
            with self.subTest(dtype=dtype, bias=bias):
                self.check_module(lambda m: m, dtype, bias)

    def test_module_compiled(self):
        """Traced and differentiated ahead of time, run without a code generator: needs nothing but PyTorch."""
        for dtype, bias, dynamic in itertools.product((torch.float64, torch.bfloat16), (False, True), (False, True)):
            with self.subTest(dtype=dtype, bias=bias, dynamic=dynamic):
                torch._dynamo.reset()
                self.check_module(lambda m: torch.compile(m, fullgraph=True, backend="aot_eager", dynamic=dynamic),
                                  dtype, bias)

    def test_module_compiled_by_inductor(self):
        works, reason = inductor_works(self.device)
        if not works:
            self.skipTest(f"inductor compiles nothing on {self.device}: {reason}")
        for dtype, bias in ((torch.float64, True), (torch.float32, False), (torch.bfloat16, True)):
            with self.subTest(dtype=dtype, bias=bias):
                torch._dynamo.reset()
                self.check_module(lambda m: torch.compile(m, fullgraph=True), dtype, bias)

    def test_compiled_once_for_every_size(self):
        """Under dynamic=True one graph serves any B, H, W: the shape functions hold for symbols."""
        layer = AxialAttention(16, 2, torch.ops.axial.axial_pass).to(self.device)
        run = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
        run(torch.randn(2, 5, 7, 16, device=self.device))
        with torch.compiler.set_stance("fail_on_recompile"):
            for shape in ((3, 4, 6, 16), (6, 9, 8, 16)):
                x = torch.randn(shape, device=self.device)
                self.assertTrue(torch.equal(run(x), layer(x)))

    # --- manners ---

    def test_dropout_is_differentiated_with_the_mask_of_its_forward(self):
        inputs = pass_inputs((2, 2, 4, 6), 2, ROWS, torch.float64, self.device, bias=True)
        rng = rng_on(self.device)
        run = lambda *t: torch.ops.axial.axial_pass(*t, ROWS, 2, 1e-5, 0.3, rng, 7)
        self.assertTrue(torch.autograd.gradcheck(run, inputs))
        self.assertGreater(relative_error(run(*inputs), torch.ops.axial.axial_pass(*inputs, ROWS, 2)), 1e-3)

    def test_autocast_changes_nothing(self):
        """An operator runs in the type of its inputs, its products too."""
        passes = pass_inputs((2, 3, 5, 8), 2, ROWS, torch.float32, self.device, bias=True)
        cores = core_inputs((2, 3, 5, 2, 4), ROWS, torch.float32, self.device, bias=True)
        for op, inputs, rest in ((torch.ops.axial.axial_pass, passes, (ROWS, 2)),
                                 (torch.ops.axial.attention, cores, (ROWS,))):
            out = op(*inputs, *rest)
            gradients = torch.autograd.grad(out.square().sum(), inputs)
            with torch.autocast(self.device, torch.bfloat16):
                under = op(*inputs, *rest)
                gradients_under = torch.autograd.grad(under.square().sum(), inputs)
            for a, b in zip((out, *gradients), (under, *gradients_under)):
                self.assertEqual(a.dtype, b.dtype)
                self.assertTrue(torch.equal(a, b))

    def test_only_what_is_asked_for(self):
        inputs = pass_inputs((2, 3, 5, 8), 2, ROWS, torch.float64, self.device, bias=True)
        everything = torch.autograd.grad(torch.ops.axial.axial_pass(*inputs, ROWS, 2).square().sum(), inputs)
        for i, wanted in enumerate(inputs):
            alone = [t.detach().requires_grad_(t is wanted) for t in inputs]
            torch.ops.axial.axial_pass(*alone, ROWS, 2).square().sum().backward()
            self.assertTrue(torch.equal(alone[i].grad, everything[i]), PASS_NAMES[i])
            self.assertTrue(all(t.grad is None for t in alone if t is not alone[i]))
        with torch.no_grad():
            self.assertFalse(torch.ops.axial.axial_pass(*inputs, ROWS, 2).requires_grad)

    def test_twice_is_a_clear_error(self):
        inputs = pass_inputs((1, 2, 3, 8), 2, ROWS, torch.float64, self.device)
        y = torch.ops.axial.axial_pass(*inputs, ROWS, 2).square().sum()
        (once,) = torch.autograd.grad(y, inputs[0], create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "derivative for axial::axial_pass_backward is not implemented"):
            once.sum().backward()
        q = core_inputs((1, 2, 3, 2, 4), ROWS, torch.float64, self.device)
        (once,) = torch.autograd.grad(torch.ops.axial.attention(*q, ROWS).square().sum(), q[0], create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "derivative for axial::attention_backward is not implemented"):
            once.sum().backward()

    def test_what_is_wrong_is_said(self):
        inputs = [t.detach() if t is not None else None
                  for t in pass_inputs((1, 2, 3, 8), 2, ROWS, torch.float32, self.device)]
        with self.assertRaisesRegex(RuntimeError, "axis must be 1 .* or 2 .*, is 3"):
            torch.ops.axial.axial_pass(*inputs, 3, 2)
        with self.assertRaisesRegex(RuntimeError, r"heads \(3\) must divide D \(8\)"):
            torch.ops.axial.axial_pass(*inputs, ROWS, 3)
        with self.assertRaisesRegex(RuntimeError, "expected qkv_weight"):
            torch.ops.axial.axial_pass(*inputs[:3], inputs[4], *inputs[4:], ROWS, 2)


for device in DEVICES:
    name = f"TorchOpsOn{device.upper()}"
    globals()[name] = type(name, (OnDevice, unittest.TestCase), {"device": device})

if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *unittest_arguments], verbosity=2)
