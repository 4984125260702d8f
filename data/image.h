// Image files to tensors (PNG, JPEG).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/dataset.h"

namespace axial::data {

// Decodes by content, not by name: PNG (any bit depth, palette, alpha over black) and JPEG (gray, RGB,
// CMYK; turned upright where Exif says how). uint8 [channels, H, W] with channels 1 (luma, BT.601) or 3. Colour
// profiles and gamma are not applied. Throws DataError naming the path.
at::Tensor read_image(const std::filesystem::path& path, std::int64_t channels);

// Antialiased (area-weighted when shrinking) bilinear resize; uint8 in, uint8 out [channels, height, width].
at::Tensor resize(const at::Tensor& image, std::int64_t height, std::int64_t width);

// The largest centred part of the proportions height : width, brought to that size.
at::Tensor fit(const at::Tensor& image, std::int64_t height, std::int64_t width);

// The image files in `dir` and its subfolders, by name (.png, .jpg, .jpeg in any case), sorted. Hidden
// entries are left out, links to folders are not followed. Other files go to `others`, where that is given. Throws
// DataError where a folder cannot be read.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& dir,
                                               std::vector<std::filesystem::path>* others = nullptr);

}  // namespace axial::data
