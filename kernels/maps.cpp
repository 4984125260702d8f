// Which problems of maps.h are well-formed and covered.
#include "kernels/maps.h"

namespace axial::kernels {

namespace {

Status check_channels(const char* what, std::int64_t channels, DType dtype) {
  if (element_size(dtype) == 0) {
    return failure(Code::kInvalid, "%s: dtype %d is none of the four", what, static_cast<int>(dtype));
  }
  if (channels < 1 || channels % 8 != 0 || channels > kMaxTokenDim) {
    return failure(Code::kUnsupported, "%s: %lld channels; covered are multiples of 8 up to %lld", what,
                   static_cast<long long>(channels), static_cast<long long>(kMaxTokenDim));
  }
  return {};
}

}  // namespace

Status supported(const MaxPoolProblem& problem) {
  if (Status status = check_channels("max_pool", problem.channels, problem.dtype); !status.ok()) return status;
  return supported(PositionsProblem{problem.samples, problem.height, problem.width, problem.channels, problem.dtype});
}

Status supported(const BatchNormProblem& problem) {
  if (Status status = check_channels("batch_norm", problem.channels, problem.dtype); !status.ok()) return status;
  if (problem.rows < 2 || !(problem.eps >= 0)) {
    return failure(Code::kInvalid, "batch_norm: %lld rows, eps %g; expected at least 2 and 0",
                   static_cast<long long>(problem.rows), problem.eps);
  }
  return {};
}

}  // namespace axial::kernels
