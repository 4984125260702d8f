// What belongs to neither device: statuses, types, the rounded dropout probability, validation.
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <utility>

#include "kernels/validate.h"

namespace axial::kernels {

Status failure(Code code, const char* format, ...) {
  Status status;
  status.code = code;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(status.message, sizeof(status.message), format, arguments);
  va_end(arguments);
  return status;
}

const char* name(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "float64";
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
  }
  return "unknown";
}

std::size_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 8;
    case DType::kFloat32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
  }
  return 0;
}

std::size_t accumulator_size(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

DropoutRate dropout_rate(double p) {
  if (!(p > 0)) return {0, 0, 1};
  // At least 1 where dropout is on, and at most 255: p < 1, so something is kept and the scale is finite.
  const double nearest = std::clamp(std::nearbyint(p * 256), 1.0, 255.0);
  const double rounded = nearest / 256;
  return {static_cast<std::uint32_t>(nearest), rounded, 1 / (1 - rounded)};
}

namespace {

using Limits = std::numeric_limits<std::int64_t>;

// Element offsets and line counts are 64-bit; what would wrap there is refused.
bool product_overflows(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  std::int64_t product = 0;
  if (a == 0 || b == 0 || c == 0 || d == 0) return false;
  return __builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product) ||
         __builtin_mul_overflow(product, d, &product);
}

Status validate_lines(const Lines& lines, std::int64_t heads) {
  for (int axis = 0; axis < kMaxOuter; ++axis) {
    if (lines.outer[axis] < 0) {
      return failure(Code::kInvalid, "outer extent %d is %lld; extents are 0 or more", axis,
                     static_cast<long long>(lines.outer[axis]));
    }
  }
  if (lines.length < 0) {
    return failure(Code::kInvalid, "line length is %lld; it is 0 or more", static_cast<long long>(lines.length));
  }
  if (heads < 0) return failure(Code::kInvalid, "heads is %lld; it is 0 or more", static_cast<long long>(heads));
  if (lines.length > kMaxLength) {
    return failure(Code::kUnsupported, "line length %lld; the longest line has %lld tokens",
                   static_cast<long long>(lines.length), static_cast<long long>(kMaxLength));
  }
  const std::int64_t tokens_and_heads = lines.length * std::min(heads, Limits::max() / (kMaxLength + 1));
  if (heads > Limits::max() / (kMaxLength + 1) ||
      product_overflows(lines.outer[0], lines.outer[1], lines.outer[2], tokens_and_heads)) {
    return failure(Code::kInvalid, "%lld x %lld x %lld lines of %lld tokens and %lld heads overflow 64 bits",
                   static_cast<long long>(lines.outer[0]), static_cast<long long>(lines.outer[1]),
                   static_cast<long long>(lines.outer[2]), static_cast<long long>(lines.length),
                   static_cast<long long>(heads));
  }
  return {};
}

Status validate_dropout(const Dropout& dropout, bool nothing_to_do) {
  if (!(dropout.p >= 0 && dropout.p < 1)) {  // NaN too
    return failure(Code::kInvalid, "dropout p is %g; it lies in [0, 1)", dropout.p);
  }
  if (dropout.p > 0 && dropout.rng == nullptr && !nothing_to_do) {
    return failure(Code::kInvalid, "dropout p is %g, but rng, its {seed, offset}, is null", dropout.p);
  }
  return {};
}

Status validate_pair(const void* row_max, const void* row_sum) {
  if ((row_max == nullptr) == (row_sum == nullptr)) return {};
  return failure(Code::kInvalid, "%s is null, but %s is not; pass both row statistics or neither",
                 row_max == nullptr ? "row_max" : "row_sum", row_max == nullptr ? "row_sum" : "row_max");
}

Status null_input(const char* what) {
  return failure(Code::kInvalid, "%s is null, but the problem is not empty", what);
}

}  // namespace

bool empty(const AttentionProblem& problem) {
  return problem.lines.count() == 0 || problem.lines.length == 0 || problem.heads == 0;
}

Status validate(const AttentionProblem& problem) {
  if (element_size(problem.dtype) == 0) {
    return failure(Code::kInvalid, "dtype %d is none of the four", static_cast<int>(problem.dtype));
  }
  if (Status status = validate_lines(problem.lines, problem.heads); !status.ok()) return status;
  if (problem.head_dim < 1 || problem.head_dim > kMaxHeadDim) {
    return failure(Code::kInvalid, "head_dim is %lld; it lies in 1 .. %lld", static_cast<long long>(problem.head_dim),
                   static_cast<long long>(kMaxHeadDim));
  }
  if (!std::isfinite(problem.scale)) return failure(Code::kInvalid, "scale is %g; it is finite", problem.scale);
  if (Status status = validate_dropout(problem.dropout, empty(problem)); !status.ok()) return status;
  if (empty(problem)) return {};
  if (problem.q.data == nullptr) return null_input("q");
  if (problem.k.data == nullptr) return null_input("k");
  if (problem.v.data == nullptr) return null_input("v");
  return {};
}

Status validate(const AttentionProblem& problem, const AttentionOutput& output) {
  if (Status status = validate(problem); !status.ok()) return status;
  if (Status status = validate_pair(output.row_max, output.row_sum); !status.ok()) return status;
  if (!empty(problem) && output.o.data == nullptr) return null_input("o");
  return {};
}

Status validate(const AttentionProblem& problem, const AttentionGradients& gradients) {
  if (Status status = validate(problem); !status.ok()) return status;
  if (gradients.d_bias != nullptr && problem.bias == nullptr && !empty(problem)) {
    return failure(Code::kInvalid, "d_bias is wanted, but the problem has no bias");
  }
  if (empty(problem)) return {};
  if (gradients.o.data == nullptr) return null_input("o");
  if (gradients.d_o.data == nullptr) return null_input("d_o");
  if (gradients.row_max == nullptr) return null_input("row_max");
  if (gradients.row_sum == nullptr) return null_input("row_sum");
  return {};
}

Status validate(const Lines& lines, std::int64_t heads, const Dropout& dropout, const std::uint8_t* keep) {
  if (Status status = validate_lines(lines, heads); !status.ok()) return status;
  const bool nothing = lines.count() == 0 || lines.length == 0 || heads == 0;
  if (Status status = validate_dropout(dropout, nothing); !status.ok()) return status;
  if (!nothing && keep == nullptr) return null_input("keep");
  return {};
}

Status check_pass_extents(const PassProblem& problem) {
  for (const std::int64_t extent : problem.lines.outer) {
    if (extent < 0)
      return failure(Code::kInvalid, "fused pass: a negative extent, %lld", static_cast<long long>(extent));
  }
  if (problem.lines.length < 0 || !(problem.eps >= 0)) {
    return failure(Code::kInvalid, "fused pass: length %lld, eps %g; both are 0 or more",
                   static_cast<long long>(problem.lines.length), problem.eps);
  }
  for (const auto& [what, p] :
       {std::pair("dropout", problem.dropout.p), std::pair("projection dropout", problem.projection.p)}) {
    if (!(p >= 0 && p < 1)) return failure(Code::kInvalid, "fused pass: %s p is %g; it lies in [0, 1)", what, p);
  }
  if (problem.float32_residual && problem.dtype != DType::kBFloat16 && problem.dtype != DType::kFloat16) {
    return failure(Code::kInvalid, "fused pass: a float32 residual stream is for 16-bit arithmetic, dtype is %s",
                   name(problem.dtype));
  }
  if (problem.rotary != nullptr && problem.heads > 0 && problem.dim / problem.heads % 2 != 0) {
    return failure(Code::kInvalid, "fused pass: a rotary embedding turns pairs of channels; a head has %lld",
                   static_cast<long long>(problem.dim / problem.heads));
  }
  return {};
}

Status check_pass_random(const PassProblem& problem) {
  for (const auto& [what, dropout] :
       {std::pair("dropout", &problem.dropout), std::pair("projection dropout", &problem.projection)}) {
    if (dropout->p > 0 && dropout->rng == nullptr) {
      return failure(Code::kInvalid, "fused pass: %s p is %g, but rng is null", what, dropout->p);
    }
  }
  return {};
}

Status validate_workspace(const void* workspace, std::size_t bytes, std::size_t needed) {
  if (needed == 0) return {};
  if (workspace == nullptr) return failure(Code::kInvalid, "workspace is null; %zu bytes are needed", needed);
  if (bytes < needed) return failure(Code::kInvalid, "workspace has %zu bytes; %zu are needed", bytes, needed);
  return {};
}

Status validate_operands(const char* what, std::initializer_list<const void*> operands) {
  for (const void* operand : operands) {
    if (operand == nullptr) return failure(Code::kInvalid, "%s: a null tensor", what);
    if (reinterpret_cast<std::uintptr_t>(operand) % 16 != 0) {
      return failure(Code::kInvalid, "%s: a tensor does not start at 16 bytes", what);
    }
  }
  return {};
}

}  // namespace axial::kernels
