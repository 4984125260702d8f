#include "data/resize_filter.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <algorithm>
#include <cstring>

#include <immintrin.h>

// For these functions alone; whoever calls them has looked.
#define AXIAL_AVX2 __attribute__((target("avx2")))

namespace axial::data {
namespace {

// Products of 16-bit numbers are added in pairs; a weight of 22 bits and a sign is two of 11: weight = high * 2^11 +
// low.
constexpr int kLowBits = 11;
constexpr std::int32_t kLowMask = (1 << kLowBits) - 1;

// Weights two by two, as 16-bit pairs.
std::int32_t pair(std::int32_t first, std::int32_t second) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(first & 0xffff) | static_cast<std::uint32_t>(second)
                                                                                    << 16);
}

// Each output's weights two by two, as many pairs for each: `count` high pairs, then as many low ones. `first`: where
// they begin, which is earlier than the filter's where they would end after the line.
struct PairedFilter {
  std::vector<std::int32_t> first, pairs;
  std::int32_t count = 0;
};

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

// 32-bit sums to rounded bytes, still 32 bits wide; none is below 0, and packing cuts what is above 255.
AXIAL_AVX2 inline __m256i rounded(__m256i high, __m256i low) {
  const __m256i half = _mm256_set1_epi32(1 << (kWeightBits - 1));
  const __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), _mm256_add_epi32(low, half));
  return _mm256_srli_epi32(sum, kWeightBits);
}

// One output pixel of two rows: sums of r, g, b of row a, then of row b. `w`: `count` high and as many low pairs.
AXIAL_AVX2 inline __m256i one_pixel(const std::uint8_t* a, const std::uint8_t* b, const std::int32_t* w,
                                    std::int32_t count) {
  // Pixels k and k + 1 as r r g g b b, each 16 bits wide.
  const __m256i take =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  __m256i high = _mm256_setzero_si256(), low = _mm256_setzero_si256();
  for (std::int32_t k = 0; k < count; ++k, a += 6, b += 6) {
    const __m256i bytes =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                                _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
    const __m256i two = _mm256_shuffle_epi8(bytes, take);
    high = _mm256_add_epi32(high, _mm256_madd_epi16(two, _mm256_set1_epi32(w[k])));
    low = _mm256_add_epi32(low, _mm256_madd_epi16(two, _mm256_set1_epi32(w[count + k])));
  }
  return rounded(high, low);
}

// Two rows of RGB pixels at once, to rows of four bytes a pixel, four pixels at a time: first and the filter's pairs
// are there for a multiple of four outputs.
template <std::int32_t known>  // 0: as many pairs as `count` says
AXIAL_AVX2 void narrow_two(const std::uint8_t* row_a, const std::uint8_t* row_b,
                           const std::vector<std::int32_t>& first, const std::int32_t* w, std::int32_t count,
                           std::uint8_t* out_a, std::uint8_t* out_b) {
  if (known > 0) count = known;
  for (std::size_t i = 0; i < first.size(); i += 4, w += 8 * count) {
    __m256i sums[4];
    for (std::size_t j = 0; j < 4; ++j) {
      const std::int64_t at = 3 * static_cast<std::int64_t>(first[i + j]);
      sums[j] = one_pixel(row_a + at, row_b + at, w + 2 * static_cast<std::int64_t>(j) * count, count);
    }
    const __m256i pixels =
        _mm256_packus_epi16(_mm256_packus_epi32(sums[0], sums[1]), _mm256_packus_epi32(sums[2], sums[3]));
    _mm_store_si128(reinterpret_cast<__m128i*>(out_a + 4 * i), _mm256_castsi256_si128(pixels));
    _mm_store_si128(reinterpret_cast<__m128i*>(out_b + 4 * i), _mm256_extracti128_si256(pixels, 1));
  }
}

// Rows of four bytes a pixel, `stride` apart (a multiple of 32), to one. w: `count` high and as many low pairs.
AXIAL_AVX2 void shorten(const std::uint8_t* in, std::int64_t stride, std::int32_t rows, const std::int32_t* w,
                        std::int32_t count, std::uint8_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  for (std::int64_t x = 0; x < stride; x += 32) {
    __m256i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
    const std::uint8_t* from = in + x;
    for (std::int32_t k = 0; k < rows; k += 2, from += 2 * stride) {
      const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
      const __m256i b = k + 1 < rows ? _mm256_load_si256(reinterpret_cast<const __m256i*>(from + stride)) : zero;
      const __m256i ab[2] = {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
      const __m256i wh = _mm256_set1_epi32(w[k / 2]), wl = _mm256_set1_epi32(w[count + k / 2]);
      for (int half = 0; half < 2; ++half) {
        const __m256i first = _mm256_unpacklo_epi8(ab[half], zero), second = _mm256_unpackhi_epi8(ab[half], zero);
        high[2 * half] = _mm256_add_epi32(high[2 * half], _mm256_madd_epi16(first, wh));
        low[2 * half] = _mm256_add_epi32(low[2 * half], _mm256_madd_epi16(first, wl));
        high[2 * half + 1] = _mm256_add_epi32(high[2 * half + 1], _mm256_madd_epi16(second, wh));
        low[2 * half + 1] = _mm256_add_epi32(low[2 * half + 1], _mm256_madd_epi16(second, wl));
      }
    }
    // Packing works within halves of 16 bytes, as unpacking did.
    const __m256i left = _mm256_packus_epi32(rounded(high[0], low[0]), rounded(high[1], low[1]));
    const __m256i right = _mm256_packus_epi32(rounded(high[2], low[2]), rounded(high[3], low[3]));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + x), _mm256_packus_epi16(left, right));
  }
}

// A row of four bytes a pixel to three rows.
AXIAL_AVX2 void split(const std::uint8_t* in, std::int64_t n, std::uint8_t* red, std::int64_t plane) {
  const __m256i group =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  std::int64_t x = 0;
  for (; x + 8 <= n; x += 8) {
    const __m256i pixels = _mm256_load_si256(reinterpret_cast<const __m256i*>(in + 4 * x));
    const __m256i planes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixels, group), order);
    const __m128i rg = _mm256_castsi256_si128(planes), b = _mm256_extracti128_si256(planes, 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(red + x), rg);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(red + plane + x), _mm_unpackhi_epi64(rg, rg));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(red + 2 * plane + x), b);
  }
  for (; x < n; ++x) {
    for (std::int64_t c = 0; c < 3; ++c) red[c * plane + x] = in[4 * x + c];
  }
}

struct alignas(32) Block {
  std::uint8_t bytes[32];
};

}  // namespace

bool resize_rgb_avx2(const Pixels& in, const Filter& along_x, const Filter& along_y, const Planes& out) {
  if (!__builtin_cpu_supports("avx2")) return false;
  PairedFilter x_pairs = paired(along_x, in.width);
  const PairedFilter y_pairs = paired(along_y, INT32_MAX);
  x_pairs.first.resize((x_pairs.first.size() + 3) / 4 * 4, 0);  // the last ones are not looked at
  x_pairs.pairs.resize(x_pairs.first.size() * 2 * static_cast<std::size_t>(x_pairs.count), 0);
  const auto narrow = x_pairs.count == 1   ? narrow_two<1>
                      : x_pairs.count == 2 ? narrow_two<2>
                      : x_pairs.count == 3 ? narrow_two<3>
                                           : narrow_two<0>;
  // The rows that some output needs, narrowed: four bytes a pixel.
  const std::int64_t begin = along_y.first.front(), end = along_y.first.back() + along_y.count.back();
  const std::int64_t stride = (4 * out.width + 31) / 32 * 32;
  const std::unique_ptr<Block[]> middle(new Block[static_cast<std::size_t>((end - begin + 1) * (stride / 32))]);
  std::uint8_t* const rows = middle[0].bytes;
  std::uint8_t* const line = rows + (end - begin) * stride;  // one output row
  for (std::int64_t y = begin; y < end; y += 2) {
    const std::int64_t next = std::min(y + 1, end - 1);
    narrow(in.bytes.data() + y * in.width * 3, in.bytes.data() + next * in.width * 3, x_pairs.first,
           x_pairs.pairs.data(), x_pairs.count, rows + (y - begin) * stride, rows + (next - begin) * stride);
  }
  for (std::int64_t y = 0; y < out.height; ++y) {
    const auto at = static_cast<std::size_t>(y);
    shorten(rows + (along_y.first[at] - begin) * stride, stride, along_y.count[at],
            y_pairs.pairs.data() + 2 * y * y_pairs.count, y_pairs.count, line);
    split(line, out.width, out.out + y * out.row, out.plane);
  }
  return true;
}

}  // namespace axial::data

#else

namespace axial::data {
bool resize_rgb_avx2(const Pixels&, const Filter&, const Filter&, const Planes&) { return false; }
}  // namespace axial::data

#endif
