"""Deliberate faults: what a change may break without a compiler's notice, and the tests that should see it.

Each is one place in one file: `old`, which stands there exactly once, becomes `new`. `tests` are programs with a
filter of GoogleTest's. Faults of a file stand together, so that one rebuild follows the other cheaply; none is in a
header that CUDA sources include, and all compile without a warning.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    file: str
    what: str
    old: str
    new: str
    tests: str  # "program:filter", separated by blanks
    gpu: bool = False


def faults(file, *rows, gpu=False):
    return [Fault(file, *row, gpu=gpu) for row in rows]


ATTENTION = "kernels_tests:*Attention*:Cpu.*"

KERNELS = [
    *faults(
        "kernels/cpu/attention_forward.cpp",
        (
            "causal lines of several tiles see later keys",
            "const std::int64_t end = problem.causal ? q0 + queries : length;",
            "const std::int64_t end = length;",
            ATTENTION,
        ),
        (
            "online softmax does not rescale what it has",
            "      if (!first) {\n        for (int i = 0; i < queries; ++i) {",
            "      if (!first && length < 0) {\n        for (int i = 0; i < queries; ++i) {",
            ATTENTION,
        ),
    ),
    *faults(
        "kernels/cpu/attention_backward.cpp",
        (
            "softmax backward adds the row's mean",
            "hn::Mul(p, hn::Sub(gradient, mean))",
            "hn::Mul(p, hn::Add(gradient, mean))",
            ATTENTION,
        ),
        (
            "backward does not drop what the forward dropped",
            "      if (keep != nullptr) gradient = hn::Mul",
            "      if (keep != nullptr && dp == nullptr) gradient = hn::Mul",
            "kernels_tests:*AttentionDropout*",
        ),
        (
            "a line of one token gets what rounding leaves",
            "if (length == 1) std::fill",
            "if (length == 0) std::fill",
            "kernels_tests:*Case06*",
        ),
        (
            "the bias gradient loses a slab",
            "for (std::int64_t slab = 0; slab < plan.slabs; ++slab) {",
            "for (std::int64_t slab = 0; slab + 1 < plan.slabs; ++slab) {",
            ATTENTION,
        ),
    ),
    *faults(
        "kernels/cpu/pass_forward.cpp",
        (
            "causal lines of a fused pass see later keys",
            "const std::int64_t visible = work.problem.causal ? first + i + 1 : length;",
            "const std::int64_t visible = keys;",
            "kernels_tests:*CpuPass*",
        ),
    ),
    *faults(
        "kernels/cpu/pass_backward.cpp",
        (
            "idle lanes add to the gradients",
            "std::fill(tile + group.count * plan.width, tile + plan.lanes * plan.width, T{0});",
            "std::fill(tile + group.count * plan.width, tile + group.count * plan.width, T{0});",
            "kernels_tests:*CpuPass*",
        ),
        (
            "a fused pass's backward does not drop what its forward dropped",
            "gradient = hn::Mul(gradient, hn::LoadU(d, keep + j * lanes));",
            "gradient = hn::Mul(gradient, hn::Set(d, T{1}));",
            "kernels_tests:*CpuPass*",
        ),
        (
            "a fused pass's gradients lose a slab",
            "for (std::int64_t slab = 0; slab < plan.slabs; ++slab) {",
            "for (std::int64_t slab = 0; slab + 1 < plan.slabs; ++slab) {",
            "kernels_tests:CpuPass.ManyLines",
        ),
    ),
    *faults(
        "kernels/cpu/pass-inl.h",
        (
            "the relative bias of a fused pass is shifted by one",
            "const T* bias = scores.bias + i + length - 1;",
            "const T* bias = scores.bias + (i + length - 1 < 1 ? 0 : i + length - 2);",
            "kernels_tests:*CpuPass*",
        ),
    ),
    *faults(
        "kernels/cpu/scores-inl.h",
        (
            "the relative bias is shifted by one",
            "- (scores.keys - 1) + length - 1;",
            "- (scores.keys - 1) + length - 2;",
            ATTENTION,
        ),
        ("a query does not see its own key", "hn::Ge(hn::Iota", "hn::Gt(hn::Iota", ATTENTION),
    ),
    *faults(
        "kernels/cpu/exp2-inl.h",
        (
            "far below the maximum exp2 is not 0",
            "return hn::IfThenZeroElse(tiny, result);",
            "return hn::IfThenElse(tiny, result, result);",
            "kernels_tests:*LargeLogits*:*Infinite*:*Attention*",
        ),
    ),
    *faults(
        "kernels/cpu/dropout-inl.h",
        (
            "masks repeat after 2^32 lines",
            "          hn::Set(du, static_cast<std::uint32_t>(row >> 32)),",
            "          hn::Set(du, static_cast<std::uint32_t>(row >> 63)),",
            "kernels_tests:*Dropout*",
        ),
    ),
    *faults(
        "kernels/cpu/dropout_mask.cpp",
        (
            "the shown mask is that of the first lines",
            "static_cast<std::uint64_t>(dropout.first_line) * static_cast<std::uint64_t>(heads) +",
            "",
            "kernels_tests:*Dropout* model_tests:*Dropout*",
        ),
    ),
    *faults(
        "kernels/cpu/features.cpp",
        (
            "tokens of the later samples have masks of the first",
            "static_cast<std::uint64_t>(dropout.first_line + token)",
            "static_cast<std::uint64_t>(token)",
            "kernels_tests:*Features* model_tests:*Dropout*",
        ),
    ),
    *faults(
        "kernels/cpu/loss.cpp",
        (
            "label smoothing over one class less",
            "each = smoothing / static_cast<A>(classes), log_sum",
            "each = smoothing / static_cast<A>(classes - 1), log_sum",
            "kernels_tests:*StepKernels*",
        ),
        (
            "mixup's partner is missing in the gradient",
            "(pairs && c == partner ? second : A{0})",
            "(pairs && c == -1 ? second : A{0})",
            "kernels_tests:*StepKernels*",
        ),
    ),
    *faults(
        "kernels/kernels.cpp",
        (
            "a small dropout probability is none",
            "std::nearbyint(p * 256), 1.0, 255.0)",
            "std::nearbyint(p * 256), 0.0, 255.0)",
            "kernels_tests:Kernels.DropoutRate",
        ),
        (
            "no limit on the head dimension",
            "problem.head_dim > kMaxHeadDim)",
            "problem.head_dim > 8 * kMaxHeadDim)",
            "kernels_tests:*Statuses*",
        ),
    ),
]

# Seen where kernels_tests runs on a GPU.
CUDA = [
    *faults(
        "kernels/cuda/layer_norm.cu",
        (
            "LayerNorm's backward forgets the mean gradient",
            "- mean_g - x_hat * mean_gx);\n            if (p.residual",
            "- x_hat * mean_gx);\n            if (p.residual",
            "kernels_tests:LayerNorm.*",
        ),
        (
            "a token's sums cover half of its lanes",
            "for (int step = lanes >> 1; step > 0; step >>= 1) value +=",
            "for (int step = lanes >> 2; step > 0; step >>= 1) value +=",
            "kernels_tests:LayerNorm.*",
        ),
        gpu=True,
    ),
    *faults(
        "kernels/cuda/loss.cu",
        (
            "a tie is decided by the lane, not by the class",
            "((other == largest || nan) && at < place)",
            "((other == largest || nan) && at > place)",
            "kernels_tests:*StepKernels*",
        ),
        (
            "samples past the last block's are written",
            "  if (sample >= q.samples) return;",
            "  if (sample > q.samples) return;",
            "kernels_tests:*StepKernels*",
        ),
        gpu=True,
    ),
]

MODEL = [
    *faults(
        "model/composed.cpp",
        (
            "the norm's weight gets the gradient of the folded one",
            "(d_weight * w).sum(0)",
            "d_weight.sum(0)",
            "model_tests:*Gradcheck*:*PassTest*",
        ),
        (
            "the residual is missing in the backward",
            "return dx.to(x.scalar_type()).add_(dy);",
            "return dx.to(x.scalar_type()).add_(dy, 0);",
            "model_tests:*Gradcheck*:*PassTest*",
        ),
    ),
    *faults(
        "model/pass.cpp",
        (
            "gradients of queries and keys stay turned",
            "rotate_queries_and_keys_(d_qkv, x.sizes(), options, true);",
            "",
            "model_tests:*Gradcheck*:*PassTest*",
        ),
    ),
    *faults(
        "model/rotary.cpp",
        (
            "columns are turned by their token's place in the row",
            "if (axis == Axis::kColumn) turns",
            "if (axis == Axis::kRow) turns",
            "model_tests:*Rotary*:*Gradcheck*",
        ),
        (
            "a layer keeps the table of another line length",
            "table_.size(0) != length || ",
            "",
            "model_tests:*Rotary*",
        ),
    ),
    *faults(
        "model/branch.cpp",
        (
            "the layer scale is missing in the projection's gradient",
            "return fold_scale(gradient, b.layer_scale, gradient.scalar_type()).to(parameter.scalar_type());",
            "return gradient.to(parameter.scalar_type());",
            "model_tests:*Gradcheck*:*PassTest*:*MlpTest*",
        ),
        (
            "small layer scales are folded in float16",
            "return type != at::kHalf;",
            "return type != at::kBool;",
            "model_tests:*PassTest*",
        ),
        (
            "what projection dropout left out has a gradient",
            "const at::Tensor du = scale_tokens(dy, b);",
            "const at::Tensor du = scale_samples(dy, b.sample_scale);",
            "model_tests:*Gradcheck*:*PassTest*:*MlpTest*",
        ),
    ),
    *faults(
        "model/dropout.cpp",
        (
            "a sample's mask depends on its place in the batch",
            "random.first_sample * lines_per_sample;",
            "random.first_sample * (lines_per_sample + 1);",
            "model_tests:*Dropout*",
        ),
        (
            "a token's mask depends on its sample's place in the batch",
            "stream + kProjectionStreams, tokens);",
            "stream + kProjectionStreams, 1);",
            "model_tests:*Dropout*:*PassTest*",
        ),
        (
            "the outputs of branches draw as something else does",
            "stream + kProjectionStreams, tokens);",
            "stream, tokens);",
            "model_tests:*Dropout*",
        ),
        (
            "stochastic depth does not scale what is kept",
            "return keep.view({batch}).to(type).mul_(kernels::dropout_rate(p).scale);",
            "return keep.view({batch}).to(type);",
            "model_tests:*Dropout*:*AttentionTest*",
        ),
    ),
    *faults(
        "model/position_sensitive.cpp",
        (
            "relative positions are mirrored",
            "token.unsqueeze(1) - token + (length - 1);",
            "token - token.unsqueeze(1) + (length - 1);",
            "model_tests:*PositionSensitive*",
        ),
        (
            "the gradient of the keys' table is transposed",
            "sum_by_offset((token_products(ds, k) * scale).transpose(0, 1))",
            "sum_by_offset(token_products(ds, k) * scale)",
            "model_tests:*PositionSensitive*",
        ),
        (
            "the backward forgets dropout",
            "if (factor.defined()) ds.mul_(factor);",
            "if (factor.defined()) ds.mul_(1);",
            "model_tests:*PositionSensitive*",
        ),
    ),
    *faults(
        "model/mlp_conv.cpp",
        (
            "the shortcut goes in twice",
            "sum.select(3, 1).select(2, 1).add_(1);",
            "sum.select(3, 1).select(2, 1).add_(2);",
            "model_tests:*MlpConv*",
        ),
    ),
    *faults(
        "model/stem.cpp",
        (
            "merged neighbours change places",
            ".permute({0, 1, 3, 2, 4, 5})",
            ".permute({0, 1, 3, 4, 2, 5})",
            "model_tests:*Stem*",
        ),
    ),
    *faults(
        "model/attention.cpp",
        (
            "rows and columns draw the same mask",
            "pass.stream = options_.stream + offset;",
            "pass.stream = options_.stream;",
            "model_tests:*Attention*:*Dropout*",
        ),
    ),
]

DATA = [
    *faults(
        "data/idx.cpp",
        (
            "bytes behind the last image are not seen",
            "if (!file.at_end()) fail(path, promise",
            "if (total == 0) fail(path, promise",
            "data_tests:Idx.*",
        ),
        ("label 10 of ten classes", "if (out[i] >= static_cast", "if (out[i] > static_cast", "data_tests:Idx.*"),
    ),
    *faults(
        "data/cifar.cpp",
        (
            "CIFAR-100's coarse label is taken",
            "*labels++ = bytes[at + label_bytes - 1];",
            "*labels++ = bytes[at];",
            "data_tests:Cifar*",
        ),
    ),
    *faults(
        "data/batches.cpp",
        (
            "every epoch has the order of the first",
            "if (!order_.defined() || (options_.shuffle && order_epoch_ != epoch)) {",
            "if (!order_.defined()) {",
            "data_tests:Batches.*",
        ),
        (
            "a batch is mixed with its neighbours",
            "mix.partner = n - 1 - i;",
            "mix.partner = (i + 1) % n;",
            "data_tests:Mix.*",
        ),
    ),
    *faults(
        "data/augment.cpp",
        (
            "a mirrored image is shifted the other way",
            "const std::int64_t shift = map.flip ? map.dx : -map.dx;",
            "const std::int64_t shift = -map.dx;",
            "data_tests:Augment.*",
        ),
        (
            "erased boxes are larger than asked for",
            "||\n        covered > area * options.erase_max_area) {",
            ") {",
            "data_tests:Augment.*",
        ),
    ),
    *faults(
        "data/mix.cpp",
        (
            "CutMix weighs by what was drawn, not by what was cut",
            "const double kept = 1 - static_cast<double>(h * w) / static_cast<double>(height * width);",
            "const double kept = share;",
            "data_tests:Mix.*",
        ),
        (
            "a thread leaves out the first of its images",
            "for (std::int64_t i = begin; i < end; ++i) {\n        const Mix& mix",
            "for (std::int64_t i = begin + (begin > 0); i < end; ++i) {\n        const Mix& mix",
            "data_tests:Mix.*",
        ),
    ),
    *faults(
        "data/list.cpp",
        (
            "a list's path leaves its folder",
            '(normal.is_absolute() || *normal.begin() == "..")',
            "normal.is_absolute()",
            "data_tests:List.*",
        ),
    ),
    *faults(
        "data/listing.cpp",
        (
            "a link upwards is a class",
            "    if (upwards) continue;",
            "    if (upwards && name.empty()) continue;",
            "data_tests:Folder.*",
        ),
        (
            "class10 comes before class9",
            "if (x.size() != y.size()) return x.size() < y.size();",
            "",
            "data_tests:Folder.*",
        ),
    ),
    *faults(
        "data/decode_jpeg.cpp",
        (
            "what a cut JPEG lacks is gray",
            "  if (level >= 0) return;",
            "  if (level >= -1) return;",
            "data_tests:Jpeg.*",
        ),
    ),
    *faults(
        "data/decode_png.cpp",
        (
            "a PNG cut behind its last pixel passes",
            "  png_read_end(reader.png, nullptr);",
            "  // png_read_end(reader.png, nullptr);",
            "data_tests:Png.*",
        ),
    ),
    *faults(
        "data/exif.cpp",
        (
            "pictures turned left and right change places",
            "orientation == 4 || orientation == 6 || orientation == 7;",
            "orientation == 4 || orientation == 8 || orientation == 7;",
            "data_tests:Exif.*",
        ),
    ),
    *faults(
        "data/cache.cpp",
        (
            "damaged pictures come out of the cache",
            "checksum(i, out, bytes_) == heading.checksum;",
            "heading.mark == kMark;",
            "data_tests:Loading.*",
        ),
    ),
]
