// Which problems of tokens.h and trivial.h are well-formed and covered.
#include "kernels/tokens.h"

#include <cmath>

#include "kernels/trivial.h"

namespace axial::kernels {

namespace {

long long number(std::int64_t value) { return static_cast<long long>(value); }

// Offsets within a sample are 32-bit.
constexpr std::int64_t kMaxSample = (std::int64_t{1} << 31) - 1;

bool fits(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t product = 0;
  return !__builtin_mul_overflow(a, b, &product) && !__builtin_mul_overflow(product, c, &product) &&
         product <= kMaxSample;
}

Status check_tokens(const char* what, std::int64_t samples, std::int64_t height, std::int64_t width, std::int64_t dim,
                    DType dtype) {
  if (element_size(dtype) == 0) {
    return failure(Code::kInvalid, "%s: dtype %d is none of the four", what, static_cast<int>(dtype));
  }
  if (samples < 0 || height < 1 || width < 1 || dim < 1) {
    return failure(Code::kInvalid,
                   "%s: %lld samples of %lld x %lld tokens and %lld channels; expected at least 0 of 1 x 1 and 1",
                   what, number(samples), number(height), number(width), number(dim));
  }
  if (dim % 8 != 0 || dim > kMaxTokenDim) {
    return failure(Code::kUnsupported, "%s: %lld channels; covered are multiples of 8 up to %lld", what, number(dim),
                   number(kMaxTokenDim));
  }
  if (!fits(height, width, dim) || samples > kMaxSample) {
    return failure(Code::kUnsupported, "%s: %lld samples of %lld x %lld x %lld values; the limits are 2^31 - 1", what,
                   number(samples), number(height), number(width), number(dim));
  }
  return {};
}

}  // namespace

Status supported(const PoolProblem& problem) {
  if (!(problem.eps >= 0)) return failure(Code::kInvalid, "pool: eps is %g; it is 0 or more", problem.eps);
  return check_tokens("pool", problem.samples, problem.tokens, 1, problem.dim, problem.dtype);
}

Status supported(const PositionsProblem& problem) {
  return check_tokens("positions", problem.samples, problem.height, problem.width, problem.dim, problem.dtype);
}

Status supported(const StemProblem& problem) {
  const Status status =
      check_tokens("stem", problem.samples, problem.out_height, problem.out_width, problem.dim, problem.dtype);
  if (!status.ok()) return status;
  if (problem.channels < 1 || problem.height < 1 || problem.width < 1 || problem.kernel < 1 || problem.stride < 1 ||
      problem.padding < 0) {
    return failure(Code::kInvalid, "stem: images of %lld x %lld x %lld, kernel %lld, stride %lld, padding %lld",
                   number(problem.channels), number(problem.height), number(problem.width), number(problem.kernel),
                   number(problem.stride), number(problem.padding));
  }
  if (problem.kernel > kMaxTaps || problem.channels > kMaxTaps ||
      problem.kernel * problem.kernel * problem.channels > kMaxTaps) {
    return failure(Code::kUnsupported, "stem: %lld channels of %lld x %lld taps; covered are %lld taps in all",
                   number(problem.channels), number(problem.kernel), number(problem.kernel), number(kMaxTaps));
  }
  if (!fits(problem.channels, problem.height, problem.width) || !fits(problem.out_height, problem.stride, 2) ||
      !fits(problem.out_width, problem.stride, 2) || problem.padding > kMaxSample / 4) {
    return failure(Code::kUnsupported, "stem: images of %lld x %lld x %lld; the limit is 2^31 - 1 values",
                   number(problem.channels), number(problem.height), number(problem.width));
  }
  return {};
}

Status supported(const PixelsProblem& problem) {
  if (element_size(problem.dtype) == 0) {
    return failure(Code::kInvalid, "pixels: dtype %d is none of the four", static_cast<int>(problem.dtype));
  }
  if (problem.count < 0 || problem.channels < 1 || problem.height < 1 || problem.width < 1) {
    return failure(Code::kInvalid, "pixels: %lld images of %lld x %lld x %lld", number(problem.count),
                   number(problem.channels), number(problem.height), number(problem.width));
  }
  if (!fits(problem.channels, problem.height, problem.width) || problem.count > kMaxSample) {
    return failure(Code::kUnsupported, "pixels: %lld images of %lld x %lld x %lld; the limits are 2^31 - 1",
                   number(problem.count), number(problem.channels), number(problem.height), number(problem.width));
  }
  return {};
}

Status supported(const TrivialProblem& problem) {
  if (problem.count < 0 || problem.channels < 1 || problem.height < 1 || problem.width < 1) {
    return failure(Code::kInvalid, "trivial: %lld images of %lld x %lld x %lld", number(problem.count),
                   number(problem.channels), number(problem.height), number(problem.width));
  }
  if (problem.channels > kTrivialChannels || !fits(problem.channels, problem.height, problem.width) ||
      problem.count > kMaxSample) {
    return failure(Code::kUnsupported,
                   "trivial: %lld images of %lld x %lld x %lld; the limits are 16 channels and 2^31 - 1 values",
                   number(problem.count), number(problem.channels), number(problem.height), number(problem.width));
  }
  return {};
}

}  // namespace axial::kernels
