// Counter-based random numbers, the same on host and device: Philox4x32-10 (Salmon, Moraes, Dror and
// Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and how axial indexes it.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define AXIAL_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define AXIAL_HOST_DEVICE inline
#endif

namespace axial::kernels {

struct Philox4 {
  std::uint32_t x[4];
};

AXIAL_HOST_DEVICE Philox4 philox4x32(std::uint64_t key, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                     std::uint32_t c3) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#if defined(__CUDA_ARCH__)  // the host pass does not know the pragma
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c0, b = std::uint64_t{0xCD9E8D57u} * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(b);
    c3 = static_cast<std::uint32_t>(a);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// SplitMix64's finaliser (Steele, Lea and Flood 2014): mixes the parts of a key.
AXIAL_HOST_DEVICE std::uint64_t mix64(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// The key of one dropout mask: rng = {seed, offset}, stream = layer and axis.
AXIAL_HOST_DEVICE std::uint64_t dropout_key(std::uint64_t seed, std::uint64_t offset, std::uint64_t stream) {
  return mix64(seed ^ mix64(offset ^ mix64(stream)));
}

// Sixteen 8-bit draws for keys 16*(key/16) .. +15 of one query. `row` = global line * heads + head.
// The draw of key j is byte j % 16: word (j % 16) / 4, bits 8 * (j % 4) upwards.
AXIAL_HOST_DEVICE Philox4 dropout_draws(std::uint64_t key, std::uint64_t row, std::uint32_t query,
                                        std::uint32_t key_block) {
  return philox4x32(key, key_block, query, static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(row >> 32));
}

AXIAL_HOST_DEVICE bool dropout_keeps(const Philox4& draws, std::uint32_t j, std::uint32_t threshold) {
  return ((draws.x[(j & 15) >> 2] >> (8 * (j & 3))) & 255u) >= threshold;
}

}  // namespace axial::kernels
