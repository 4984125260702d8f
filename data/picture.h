// A picture file as the model sees it: decoded, cut, resized. Knows no libtorch, so that threads of its own may run
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/decode.h"

namespace axial::data {

// How pictures of any proportions get those that are wanted (timm's crop_mode).
enum class CropMode {
  kCenter,  // the middle part of these proportions is cut out
  kSquash,  // all of it, squeezed
  kBorder,  // all of it, between bars of a middling gray (ImageNet's mean, as timm's)
};

struct PictureOptions {
  std::int64_t channels = 3, height = 32, width = 32;  // every picture is brought to this; 1 channel: luma, BT.601
  double crop_pct = 1;                                 // part of the sides that is seen, around the middle
  CropMode crop_mode = CropMode::kCenter;
  std::int64_t bytes() const { return channels * height * width; }
};

// A random part of a picture instead (random resized crop, Szegedy et al. 2015): an area of scale[0] to scale[1] of
// the picture, of proportions ratio[0] to ratio[1] times the wanted ones, as torchvision and timm draw it. The part
// is a function of the picture's size, `key` and `item` alone.
struct RandomCrop {
  std::uint64_t key = 0, item = 0;
  double scale[2] = {1, 1}, ratio[2] = {1, 1};
};

// The file at `path` with 1 or 3 channels, pixel by pixel, upright. By content, not by name: PNG (any bit depth,
// palette, alpha over black) and JPEG (gray, RGB, CMYK, YCCK). Throws DataError naming the path.
Pixels open_picture(const std::filesystem::path& path, std::int64_t channels, const Choose& choose = {});

// out: [channels, height, width]. `crop`: null for the middle. A JPEG much larger than what is wanted is decoded at
// 1/2, 1/4 or 1/8 of its size, which must leave at least kReduced times the wanted pixels along both sides.
inline constexpr double kReduced = 1.25;
void read_picture(const std::filesystem::path& path, const PictureOptions& options, const RandomCrop* crop,
                  std::uint8_t* out);
// The same of a picture that is decoded.
void fit_picture(const Pixels& pixels, const PictureOptions& options, std::uint8_t* out);

// Files with what is made of them: a set that is decoded when it is asked for.
struct Pictures {
  std::vector<std::string> files;
  PictureOptions options;
};

}  // namespace axial::data
