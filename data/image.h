// Image files as tensors (PNG, JPEG).
#pragma once

#include <cstdint>
#include <filesystem>

#include <ATen/core/Tensor.h>

#include "data/picture.h"

namespace axial::data {

// The whole picture as open_picture (picture.h) reads it: uint8 [channels, H, W] with channels 1 or 3. Colour
// profiles and gamma are not applied. Throws DataError naming the path.
at::Tensor read_image(const std::filesystem::path& path, std::int64_t channels);

// As training sees a picture of an image set: uint8 [channels, height, width] of the options.
at::Tensor read_image(const std::filesystem::path& path, const PictureOptions& options);

}  // namespace axial::data
