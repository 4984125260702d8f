// One decoder for each image format. Inside data/ only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace axial::data {

// Bytes that nobody has written yet: a vector would set them to zero first, which a picture's time shows.
class Bytes {
 public:
  void allocate(std::size_t size) { bytes_.reset(new std::uint8_t[size]), size_ = size; }
  std::uint8_t* data() { return bytes_.get(); }
  const std::uint8_t* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<std::uint8_t[]> bytes_;
  std::size_t size_ = 0;
};

// Pixel by pixel: bytes[(y * width + x) * channels + c].
struct Pixels {
  std::int64_t height = 0, width = 0;
  std::int64_t channels = 0;  // 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha
  std::int64_t left = 0;      // columns before the first one that were left out
  Bytes bytes;
  // Room for what the three numbers say, and for a few bytes more: who reads sixteen at a time, two pixels further
  // than he needs, may do so at the last one.
  void allocate() { bytes.allocate(static_cast<std::size_t>(height * width * channels) + 32); }
};

// A header may promise any size: more than this is refused before anything is allocated.
constexpr std::int64_t kMostPixels = 100'000'000;

// What of a picture is enough. A decoder that cannot do less makes all of it.
struct Enough {
  int reduction = 1;  // 2, 4 or 8: a picture of that part of the size
  std::int64_t begin = 0,
               end = 0;  // columns of the upright picture at its full size; others may be left out. 0, 0: all
};
using Choose = std::function<Enough(std::int64_t height, std::int64_t width)>;  // asked with the upright size

// Both throw DataError(path: what) and leave nothing behind. `path` is only named, `file` is its content.
Pixels decode_png(const std::filesystem::path& path, const std::vector<std::uint8_t>& file);
// gray: asked for the luma that most JPEGs hold as it is; may still return RGB. Turned upright by Exif's orientation.
// Reduced by n it has ceil(height / n) rows, each pixel the mean of n x n as the transform's coefficients tell it.
Pixels decode_jpeg(const std::filesystem::path& path, const std::vector<std::uint8_t>& file, bool gray,
                   const Choose& choose = {});

}  // namespace axial::data
