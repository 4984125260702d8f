#include "data/exif.h"

#include <cstring>
#include <utility>

namespace axial::data {
namespace {

constexpr std::uint32_t kOrientationTag = 0x0112, kShort = 3;

// A TIFF header and what its offsets reach; every read is inside of it or gives 0.
struct Tiff {
  const std::uint8_t* bytes;
  std::size_t size;
  bool big_endian;

  std::uint32_t number(std::size_t at, std::size_t width) const {
    if (at > size || size - at < width) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < width; ++i) value = value << 8 | bytes[big_endian ? at + i : at + width - 1 - i];
    return value;
  }
};

}  // namespace

int exif_orientation(const std::uint8_t* bytes, std::size_t size) {
  constexpr std::size_t kPrefix = 6;  // "Exif", two zeros
  if (size < kPrefix + 8 || std::memcmp(bytes, "Exif\0\0", kPrefix) != 0) return 1;
  Tiff tiff{bytes + kPrefix, size - kPrefix, bytes[kPrefix] == 'M'};
  const char* order = tiff.big_endian ? "MM" : "II";
  if (std::memcmp(tiff.bytes, order, 2) != 0 || tiff.number(2, 2) != 42) return 1;
  const std::size_t directory = tiff.number(4, 4);
  const std::uint32_t entries = tiff.number(directory, 2);
  for (std::uint32_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * std::size_t{i};  // tag, type, count, value
    if (tiff.number(entry, 2) != kOrientationTag) continue;
    const std::uint32_t value = tiff.number(entry + 8, 2);
    const bool known =
        tiff.number(entry + 2, 2) == kShort && tiff.number(entry + 4, 4) == 1 && value >= 1 && value <= 8;
    return known ? static_cast<int>(value) : 1;
  }
  return 1;
}

Pixels upright(Pixels pixels, int orientation) {
  if (orientation <= 1 || orientation > 8) return pixels;
  // Which way rows and columns of the stored picture run, and whether they change places.
  const bool swapped = orientation >= 5;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  Pixels seen;
  seen.height = swapped ? pixels.width : pixels.height;
  seen.width = swapped ? pixels.height : pixels.width;
  seen.channels = pixels.channels;
  seen.allocate();
  std::uint8_t* out = seen.bytes.data();
  const auto channels = static_cast<std::size_t>(pixels.channels);
  for (std::int64_t y = 0; y < seen.height; ++y) {
    for (std::int64_t x = 0; x < seen.width; ++x, out += channels) {
      std::int64_t row = swapped ? x : y, column = swapped ? y : x;
      if (from_bottom) row = pixels.height - 1 - row;
      if (from_right) column = pixels.width - 1 - column;
      std::memcpy(out, pixels.bytes.data() + (row * pixels.width + column) * pixels.channels, channels);
    }
  }
  return seen;
}

}  // namespace axial::data
