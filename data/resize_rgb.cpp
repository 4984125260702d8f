// RGB along both axes with vectors: AVX-512, AVX2 and NEON through Highway, chosen at run time.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/resize_rgb.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the instruction set.
#include "data/resize_filter.h"
#include "hwy/highway.h"

#include <algorithm>
#include <memory>

// What every instruction set shares.
#ifndef AXIAL_DATA_RESIZE_RGB
#define AXIAL_DATA_RESIZE_RGB
namespace axial::data {

// Products of 16-bit numbers are added in pairs; a weight of 22 bits and a sign is two of 11: weight = high * 2^11 +
// low.
inline constexpr int kLowBits = 11;
inline constexpr std::int32_t kLowMask = (1 << kLowBits) - 1;

// Each output's weights two by two, as 16-bit pairs, as many pairs for each: `count` high pairs, then as many low ones.
// `first`: where they begin, which is earlier than the filter's where they would end after the line.
struct PairedFilter {
  std::vector<std::int32_t> first, pairs;
  std::int32_t count = 0;
};

// Each weight is rounded to 2^-22 and may be half of that too large: of more of them a sum could round to 256.
inline constexpr std::int32_t kMostTaps = 1 << 13;

struct alignas(32) Block {
  std::uint8_t bytes[32];
};

}  // namespace axial::data
#endif

HWY_BEFORE_NAMESPACE();
namespace axial::data {
namespace HWY_NAMESPACE {

// Byte shuffles are what this lives on; without them the plain way is as fast.
#if HWY_TARGET == HWY_SSE2 || HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

bool resize_rgb(const Pixels&, const PairedFilter&, const Filter&, const PairedFilter&, const Planes&) { return false; }

#else

namespace hn = hwy::HWY_NAMESPACE;

// Blocks of 16 bytes are what shuffles and interleaving work within; each holds a row.
using D8 = hn::CappedTag<std::uint8_t, 32>;
using D16 = hn::Repartition<std::int16_t, D8>;
using D32 = hn::Repartition<std::int32_t, D8>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;
inline constexpr int kRows = HWY_MAX_BYTES >= 32 ? 2 : 1;  // that are narrowed at once

// 16 bytes at `a`, and at `b` where there is room for a second row.
HWY_INLINE V8 load_rows(const std::uint8_t* a, const std::uint8_t* b) {
  const hn::FixedTag<std::uint8_t, 16> d;
#if HWY_MAX_BYTES >= 32
  return hn::Combine(D8(), hn::LoadU(d, b), hn::LoadU(d, a));
#else
  (void)b;
  return hn::LoadU(d, a);
#endif
}

// Sums of pairs of products, of high and low parts of the weights. Some processors keep each in two vectors.
struct Sums {
  V32 high, high2, low, low2;

  // Written out, since a constructor that the compiler makes is not for the instruction set.
  HWY_INLINE Sums() : high(hn::Zero(D32())), high2(high), low(high), low2(high) {}
  HWY_INLINE void add(V16 pixels, V32 weights_high, V32 weights_low) {
    high = hn::ReorderWidenMulAccumulate(D32(), pixels, hn::BitCast(D16(), weights_high), high, high2);
    low = hn::ReorderWidenMulAccumulate(D32(), pixels, hn::BitCast(D16(), weights_low), low, low2);
  }
  // Rounded to bytes, still 32 bits wide; none is below 0.
  HWY_INLINE V32 rounded() const {
    const V32 sum = hn::Add(hn::ShiftLeft<kLowBits>(hn::RearrangeToOddPlusEven(high, high2)),
                            hn::Add(hn::RearrangeToOddPlusEven(low, low2), hn::Set(D32(), 1 << (kWeightBits - 1))));
    const hn::RebindToUnsigned<D32> du;
    return hn::BitCast(D32(), hn::ShiftRight<kWeightBits>(hn::BitCast(du, sum)));
  }
};

// Four vectors of rounded sums, each at most 255, to bytes, in their order within each block.
HWY_INLINE V8 pack(V32 a, V32 b, V32 c, V32 d) {
  alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
  // Within blocks of these sizes "reordered" is no order at all.
  const V16 even = hn::ReorderDemote2To(D16(), a, b), odd = hn::ReorderDemote2To(D16(), c, d);
  return hn::TableLookupBytes(hn::BitCast(D8(), hn::Or(even, hn::ShiftLeft<8>(odd))), hn::LoadDup128(D8(), kOrder));
}

// One output pixel of each row: sums of r, g, b. `w`: `count` high and as many low pairs.
HWY_INLINE V32 one_pixel(const std::uint8_t* a, const std::uint8_t* b, const std::int32_t* w, std::int32_t count) {
  // Pixels k and k + 1 as r r g g b b, each 16 bits wide; 0x80 makes a zero.
  alignas(16) static constexpr std::uint8_t kTake[16] = {0, 0x80, 3, 0x80, 1,    0x80, 4,    0x80,
                                                         2, 0x80, 5, 0x80, 0x80, 0x80, 0x80, 0x80};
  const V8 take = hn::LoadDup128(D8(), kTake);
  Sums sums;
  for (std::int32_t k = 0; k < count; ++k, a += 6, b += 6) {
    const V16 two = hn::BitCast(D16(), hn::TableLookupBytesOr0(load_rows(a, b), take));
    sums.add(two, hn::Set(D32(), w[k]), hn::Set(D32(), w[count + k]));
  }
  return sums.rounded();
}

// Rows of RGB pixels to rows of four bytes a pixel, four pixels at a time: first and the filter's pairs are there for
// a multiple of four outputs.
template <std::int32_t known>  // 0: as many pairs as `count` says
void narrow(const std::uint8_t* row_a, const std::uint8_t* row_b, const std::vector<std::int32_t>& first,
            const std::int32_t* w, std::int32_t count, std::uint8_t* out_a, std::uint8_t* out_b) {
  if (known > 0) count = known;
  for (std::size_t i = 0; i < first.size(); i += 4, w += 8 * count) {
    const auto pixel = [&](std::size_t j) HWY_ATTR {
      const std::int64_t at = 3 * static_cast<std::int64_t>(first[i + j]);
      return one_pixel(row_a + at, row_b + at, w + 2 * static_cast<std::int64_t>(j) * count, count);
    };
    const V8 pixels = pack(pixel(0), pixel(1), pixel(2), pixel(3));
#if HWY_MAX_BYTES >= 32
    const hn::Half<D8> d;
    hn::Store(hn::LowerHalf(d, pixels), d, out_a + 4 * i);
    hn::Store(hn::UpperHalf(d, pixels), d, out_b + 4 * i);
#else
    (void)out_b;
    hn::Store(pixels, D8(), out_a + 4 * i);
#endif
  }
}

// Rows of four bytes a pixel, `stride` apart (a multiple of 32), to one. w: `count` high and as many low pairs.
void shorten(const std::uint8_t* in, std::int64_t stride, std::int32_t rows, const std::int32_t* w, std::int32_t count,
             std::uint8_t* out) {
  const D8 d;
  const V8 zero = hn::Zero(d);
  for (std::int64_t x = 0; x < stride; x += static_cast<std::int64_t>(hn::Lanes(d))) {
    Sums s0, s1, s2, s3;
    const std::uint8_t* from = in + x;
    for (std::int32_t k = 0; k < rows; k += 2, from += 2 * stride) {
      const V8 a = hn::Load(d, from), b = k + 1 < rows ? hn::Load(d, from + stride) : zero;
      const V8 lower = hn::InterleaveLower(d, a, b), upper = hn::InterleaveUpper(d, a, b);
      const V32 high = hn::Set(D32(), w[k / 2]), low = hn::Set(D32(), w[count + k / 2]);
      s0.add(hn::BitCast(D16(), hn::InterleaveLower(d, lower, zero)), high, low);
      s1.add(hn::BitCast(D16(), hn::InterleaveUpper(d, lower, zero)), high, low);
      s2.add(hn::BitCast(D16(), hn::InterleaveLower(d, upper, zero)), high, low);
      s3.add(hn::BitCast(D16(), hn::InterleaveUpper(d, upper, zero)), high, low);
    }
    hn::Store(pack(s0.rounded(), s1.rounded(), s2.rounded(), s3.rounded()), d, out + x);
  }
}

// A row of four bytes a pixel to three rows.
void split(const std::uint8_t* in, std::int64_t n, std::uint8_t* red, std::int64_t plane) {
  std::int64_t x = 0;
#if HWY_MAX_BYTES >= 32
  // Of eight pixels: reds, greens and blues of each block together, then of both.
  alignas(16) static constexpr std::uint8_t kGroup[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  alignas(32) static constexpr std::int32_t kOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  const V8 group = hn::LoadDup128(D8(), kGroup);
  const auto order = hn::SetTableIndices(D32(), kOrder);
  const hn::Half<D8> half;
  const hn::Half<decltype(half)> eight;
  for (; x + 8 <= n; x += 8) {
    const V32 grouped = hn::BitCast(D32(), hn::TableLookupBytes(hn::Load(D8(), in + 4 * x), group));
    const V8 planes = hn::BitCast(D8(), hn::TableLookupLanes(grouped, order));
    const auto red_green = hn::LowerHalf(half, planes), blue = hn::UpperHalf(half, planes);
    hn::StoreU(hn::LowerHalf(eight, red_green), eight, red + x);
    hn::StoreU(hn::UpperHalf(eight, red_green), eight, red + plane + x);
    hn::StoreU(hn::LowerHalf(eight, blue), eight, red + 2 * plane + x);
  }
#else
  const D8 d;
  for (; x + 16 <= n; x += 16) {
    V8 r, g, b, rest;
    hn::LoadInterleaved4(d, in + 4 * x, r, g, b, rest);
    hn::StoreU(r, d, red + x);
    hn::StoreU(g, d, red + plane + x);
    hn::StoreU(b, d, red + 2 * plane + x);
  }
#endif
  for (; x < n; ++x) {
    for (std::int64_t c = 0; c < 3; ++c) red[c * plane + x] = in[4 * x + c];
  }
}

bool resize_rgb(const Pixels& in, const PairedFilter& along_x, const Filter& along_y, const PairedFilter& y_pairs,
                const Planes& out) {
  const auto narrowed = along_x.count == 1   ? narrow<1>
                        : along_x.count == 2 ? narrow<2>
                        : along_x.count == 3 ? narrow<3>
                                             : narrow<0>;
  // The rows that some output needs, narrowed: four bytes a pixel.
  const std::int64_t begin = along_y.first.front(), end = along_y.first.back() + along_y.count.back();
  const std::int64_t stride = (4 * out.width + 31) / 32 * 32;
  const std::unique_ptr<Block[]> middle(new Block[static_cast<std::size_t>((end - begin + 1) * (stride / 32))]);
  std::uint8_t* const rows = middle[0].bytes;
  std::uint8_t* const line = rows + (end - begin) * stride;  // one output row
  for (std::int64_t y = begin; y < end; y += kRows) {
    const std::int64_t next = std::min(y + 1, end - 1);
    narrowed(in.bytes.data() + y * in.width * 3, in.bytes.data() + next * in.width * 3, along_x.first,
             along_x.pairs.data(), along_x.count, rows + (y - begin) * stride, rows + (next - begin) * stride);
  }
  for (std::int64_t y = 0; y < out.height; ++y) {
    const auto at = static_cast<std::size_t>(y);
    shorten(rows + (along_y.first[at] - begin) * stride, stride, along_y.count[at],
            y_pairs.pairs.data() + 2 * y * y_pairs.count, y_pairs.count, line);
    split(line, out.width, out.out + y * out.row, out.plane);
  }
  return true;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace axial::data
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace axial::data {
namespace {

std::int32_t pair(std::int32_t first, std::int32_t second) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(first & 0xffff) | static_cast<std::uint32_t>(second)
                                                                                    << 16);
}

PairedFilter paired(const Filter& filter, std::int64_t line) {
  PairedFilter result;
  result.count = (*std::max_element(filter.count.begin(), filter.count.end()) + 1) / 2;
  const std::int32_t latest = std::max(0, static_cast<std::int32_t>(line) - 2 * result.count);
  for (std::size_t i = 0; i < filter.first.size(); ++i) {
    const std::int32_t* weights = filter.weights.data() + static_cast<std::int64_t>(i) * filter.most;
    result.first.push_back(std::min(filter.first[i], latest));
    const std::int32_t before = filter.first[i] - result.first.back();
    const auto weight = [&](std::int32_t k) {
      return k >= before && k < before + filter.count[i] ? weights[k - before] : 0;
    };
    for (std::int32_t k = 0; k < result.count; ++k)
      result.pairs.push_back(pair(weight(2 * k) >> kLowBits, weight(2 * k + 1) >> kLowBits));
    for (std::int32_t k = 0; k < result.count; ++k)
      result.pairs.push_back(pair(weight(2 * k) & kLowMask, weight(2 * k + 1) & kLowMask));
  }
  return result;
}

}  // namespace

HWY_EXPORT(resize_rgb);

bool resize_rgb_fast(const Pixels& in, const Filter& along_x, const Filter& along_y, const Planes& out) {
  if (std::max(along_x.most, along_y.most) > kMostTaps) return false;
  PairedFilter x_pairs = paired(along_x, in.width);
  x_pairs.first.resize((x_pairs.first.size() + 3) / 4 * 4, 0);  // the last ones are not looked at
  x_pairs.pairs.resize(x_pairs.first.size() * 2 * static_cast<std::size_t>(x_pairs.count), 0);
  return HWY_DYNAMIC_DISPATCH(resize_rgb)(in, x_pairs, along_y, paired(along_y, INT32_MAX), out);
}

}  // namespace axial::data
#endif
