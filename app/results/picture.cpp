#include "app/results/picture.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include <png.h>

#include <ATen/ATen.h>

namespace axial::app {
namespace {

// Of the colour map "inferno" (van der Walt and Smith, CC0), evenly spaced.
constexpr float kColours[][3] = {{0, 0, 4},     {66, 10, 104},  {147, 38, 103},
                                 {221, 81, 58}, {252, 165, 10}, {252, 255, 164}};
constexpr float kLeastAlpha = 0.35F, kGreatestAlpha = 0.75F;  // of the colour over the picture
constexpr std::int64_t kGap = 8;                              // pixels between pictures

// v [H, W] in [0, 1] -> [3, H, W] in [0, 255].
at::Tensor colours_of(const at::Tensor& v) {
  constexpr auto steps = static_cast<std::int64_t>(std::size(kColours)) - 1;
  const at::Tensor table = at::from_blob(const_cast<float*>(&kColours[0][0]), {steps + 1, 3}, at::kFloat);
  const at::Tensor place = v * static_cast<double>(steps), low = place.floor().clamp(0, steps - 1);
  const at::Tensor index = low.to(at::kLong).flatten(), part = (place - low).flatten().unsqueeze(1);
  const at::Tensor mixed = table.index_select(0, index) * (1 - part) + table.index_select(0, index + 1) * part;
  return mixed.t().reshape({3, v.size(0), v.size(1)});
}

}  // namespace

at::Tensor as_rgb(const at::Tensor& image) {
  return (image.size(0) == 3 ? image : image.narrow(0, 0, 1).expand({3, image.size(1), image.size(2)})).contiguous();
}

std::int64_t enlargement(std::int64_t height, std::int64_t width, std::int64_t side) {
  constexpr std::int64_t kLongest = 4096;
  const std::int64_t shorter = std::min(height, width), longer = std::max(height, width);
  return std::max<std::int64_t>(std::min((side + shorter - 1) / shorter, kLongest / longer), 1);
}

at::Tensor enlarged(const at::Tensor& image, std::int64_t side) {
  const std::int64_t factor = enlargement(image.size(1), image.size(2), side);
  return image.repeat_interleave(factor, 1).repeat_interleave(factor, 2);
}

at::Tensor with_heat(const at::Tensor& rgb, const at::Tensor& map, std::int64_t covered_height,
                     std::int64_t covered_width) {
  const std::int64_t height = rgb.size(1), width = rgb.size(2);
  const std::int64_t whole[2] = {std::max(height, covered_height), std::max(width, covered_width)};
  at::Tensor v = at::upsample_bilinear2d(map.to(at::kCPU, at::kFloat).unsqueeze(0).unsqueeze(0), whole,
                                         /*align_corners=*/false)[0][0]
                     .slice(0, 0, height)
                     .slice(1, 0, width);
  const at::Tensor low = v.min(), span = v.max() - low;
  v = span.item<float>() > 0 ? (v - low) / span : at::zeros_like(v);
  const at::Tensor picture = rgb.to(at::kFloat), weights = at::tensor({0.299F, 0.587F, 0.114F}).view({3, 1, 1});
  const at::Tensor gray = (picture * weights).sum(0, true).expand({3, height, width});
  const at::Tensor alpha = kLeastAlpha + (kGreatestAlpha - kLeastAlpha) * v;
  return (gray * (1 - alpha) + colours_of(v) * alpha).round().clamp(0, 255).to(at::kByte).contiguous();
}

at::Tensor side_by_side(const std::vector<at::Tensor>& pictures) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& picture : pictures) {
    if (!parts.empty()) parts.push_back(at::full({3, picture.size(1), kGap}, 255, at::kByte));
    parts.push_back(picture);
  }
  return at::cat(parts, 2);
}

std::string encode_png(const at::Tensor& rgb) {
  const at::Tensor pixels = rgb.permute({1, 2, 0}).contiguous();  // [H, W, 3]
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(pixels.size(1));
  image.height = static_cast<png_uint_32>(pixels.size(0));
  image.format = PNG_FORMAT_RGB;
  const void* bytes = pixels.const_data_ptr();
  png_alloc_size_t size = 0;
  std::string file;
  if (png_image_write_to_memory(&image, nullptr, &size, 0, bytes, 0, nullptr) != 0) {
    file.resize(size);
    if (png_image_write_to_memory(&image, file.data(), &size, 0, bytes, 0, nullptr) != 0) {
      file.resize(size);
      return file;
    }
  }
  throw std::runtime_error(std::string("a picture cannot be written as PNG: ") + image.message);
}

}  // namespace axial::app
