// Pictures for reports: enlarged, with a map over them, as PNG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace axial::app {

// image: uint8 [channels, H, W]; 3 channels are colours, of any other number the first is taken for gray.
// -> uint8 [3, H, W].
at::Tensor as_rgb(const at::Tensor& image);

// By how much pictures of that size are enlarged: to `side` pixels or more on either side, but not past 4096 on one.
std::int64_t enlargement(std::int64_t height, std::int64_t width, std::int64_t side);

// The image by its enlargement; each pixel a square.
at::Tensor enlarged(const at::Tensor& image, std::int64_t side);

// `map` [h, w], any range, over rgb [3, H, W]: the picture in gray, coloured from dark violet (the least) to light
// yellow (the greatest). The map's cells cover `covered_height` x `covered_width` pixels from the upper left corner
// (0: the picture), which is more than the picture where a stem pads it.
at::Tensor with_heat(const at::Tensor& rgb, const at::Tensor& map, std::int64_t covered_height = 0,
                     std::int64_t covered_width = 0);

// uint8 [3, H, W] pictures of one height, left to right, with white between.
at::Tensor side_by_side(const std::vector<at::Tensor>& pictures);

// The bytes of a PNG file of uint8 [3, H, W].
std::string encode_png(const at::Tensor& rgb);

}  // namespace axial::app
