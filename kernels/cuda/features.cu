#include "kernels/features.h"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/philox.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {
namespace {

// keep[tokens, features]. A thread owns 16 features of a token.
__global__ void __launch_bounds__(256)
    feature_mask_kernel(const std::uint64_t* rng, std::uint64_t stream, std::uint32_t threshold, std::uint64_t first,
                        std::int64_t tokens, std::int64_t features, std::uint8_t* keep) {
  const std::int64_t blocks = (features - 1) / 16 + 1, step = std::int64_t{gridDim.x} * blockDim.x;
  const std::uint64_t key = threshold == 0 ? 0 : dropout_key(rng[0], rng[1], stream);
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < tokens * blocks; i += step) {
    const std::int64_t token = i / blocks, block = i % blocks;
    Philox4 draws = {};
    if (threshold != 0) draws = dropout_draws(key, first + token, 0, static_cast<std::uint32_t>(block));
    std::uint8_t* to = keep + token * features + block * 16;
    for (std::uint32_t j = 0; j < min(std::int64_t{16}, features - block * 16); ++j) {
      to[j] = dropout_keeps(draws, j, threshold);
    }
  }
}

}  // namespace

Status feature_mask(std::int64_t tokens, std::int64_t features, const Dropout& dropout, std::uint8_t* keep,
                    CUstream_st* stream) {
  if (Status status = validate({{tokens, 1, 1}, features}, 1, dropout, keep); !status.ok()) return status;
  if (tokens == 0 || features == 0) return {};
  const std::int64_t threads = tokens * ((features - 1) / 16 + 1);
  const std::int64_t blocks = std::min<std::int64_t>((threads - 1) / 256 + 1, 1 << 20);
  feature_mask_kernel<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(
      dropout.rng, dropout.stream, dropout_rate(dropout.p).threshold, static_cast<std::uint64_t>(dropout.first_line),
      tokens, features, keep);
  return check(cudaGetLastError(), "feature mask");
}

}  // namespace axial::kernels::cuda
