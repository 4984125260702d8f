// Random numbers by coordinates: each use has a stream, each (seed, epoch) a key within it.
#pragma once

#include <cstdint>

#include "kernels/philox.h"

namespace axial::data {

enum class Stream : std::uint64_t {
  kOrder = 0x6f72646572,
  kAugment = 0x6175676d,
  kSynthetic = 0x73796e74,
  kCrop = 0x63726f70
};

inline std::uint64_t stream_key(std::uint64_t seed, std::uint64_t epoch, Stream stream) {
  return kernels::mix64(seed ^ kernels::mix64(epoch ^ kernels::mix64(static_cast<std::uint64_t>(stream))));
}

// Draw `block` of item `item`: four independent words.
inline kernels::Philox4 draw(std::uint64_t key, std::uint64_t item, std::uint32_t block) {
  return kernels::philox4x32(key, block, 0, static_cast<std::uint32_t>(item), static_cast<std::uint32_t>(item >> 32));
}

// Uniform in [0, n), n < 2^31, from one word; the bias is below n / 2^32.
inline std::int64_t below(std::uint32_t word, std::int64_t n) {
  return static_cast<std::int64_t>((std::uint64_t{word} * static_cast<std::uint64_t>(n)) >> 32);
}

// Uniform in [0, 1), exact in double.
inline double unit(std::uint32_t word) { return word * 0x1p-32; }

}  // namespace axial::data
