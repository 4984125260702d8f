// One decoder for each image format. Inside data/ only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace axial::data {

// Pixel by pixel: bytes[(y * width + x) * channels + c].
struct Pixels {
  std::int64_t height = 0, width = 0;
  std::int64_t channels = 0;  // 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha
  std::vector<std::uint8_t> bytes;
};

// A header may promise any size: more than this is refused before anything is allocated.
constexpr std::int64_t kMostPixels = 100'000'000;

// Both throw DataError(path: what) and leave nothing behind. `path` is only named, `file` is its content.
Pixels decode_png(const std::filesystem::path& path, const std::vector<std::uint8_t>& file);
// gray: asked for the luma that most JPEGs hold as it is; may still return RGB. Turned upright by Exif's orientation.
Pixels decode_jpeg(const std::filesystem::path& path, const std::vector<std::uint8_t>& file, bool gray);

}  // namespace axial::data
