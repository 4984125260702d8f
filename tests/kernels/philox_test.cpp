// The random numbers against Random123's published vectors, and how dropout indexes them.
#include "kernels/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace axial::kernels {
namespace {

void expect_words(const Philox4& out, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  EXPECT_EQ(out.x[0], a);
  EXPECT_EQ(out.x[1], b);
  EXPECT_EQ(out.x[2], c);
  EXPECT_EQ(out.x[3], d);
}

// kat_vectors of Random123, philox 4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  expect_words(philox4x32(0, 0, 0, 0, 0), 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u);
  const std::uint32_t ones = 0xffffffffu;
  expect_words(philox4x32(~std::uint64_t{0}, ones, ones, ones, ones), 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u,
               0x6d5451fdu);
  const std::uint64_t key = (std::uint64_t{0x299f31d0u} << 32) | 0xa4093822u;
  expect_words(philox4x32(key, 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u), 0xd16cfe09u, 0x94fdccebu,
               0x5001e420u, 0x24126ea1u);
}

// SplitMix64's first outputs for state 0 are the finaliser of multiples of its increment.
TEST(Philox, Mix64IsSplitMix) {
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafull);
  EXPECT_EQ(mix64(0x9E3779B97F4A7C15ull), 0x6e789e6aa1b965f4ull);
}

TEST(Philox, KeysDifferInEveryPart) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (std::uint64_t offset = 0; offset < 8; ++offset)
      for (std::uint64_t stream = 0; stream < 8; ++stream) keys.insert(dropout_key(seed, offset, stream));
  EXPECT_EQ(keys.size(), 512u);
}

// Key j takes byte j % 16, low bytes first; draws below the threshold are dropped.
TEST(Philox, DrawOfAKey) {
  const Philox4 draws = {{0x03020100u, 0x07060504u, 0x0b0a0908u, 0x0f0e0d0cu}};
  for (std::uint32_t key = 0; key < 64; ++key) {
    for (std::uint32_t threshold = 0; threshold <= 16; ++threshold) {
      EXPECT_EQ(dropout_keeps(draws, key, threshold), key % 16 >= threshold);
    }
  }
  const Philox4 same = philox4x32(9, 4, 3, 2, 1);
  const Philox4 row = dropout_draws(9, (std::uint64_t{1} << 32) | 2, 3, 4);
  for (int word = 0; word < 4; ++word) EXPECT_EQ(row.x[word], same.x[word]);
}

}  // namespace
}  // namespace axial::kernels
