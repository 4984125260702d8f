#include "data/image.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace axial::data {

at::Tensor read_image(const std::filesystem::path& path, std::int64_t channels) {
  Pixels pixels = open_picture(path, channels);
  return at::from_blob(pixels.bytes.data(), {pixels.height, pixels.width, channels}, at::kByte)
      .permute({2, 0, 1})
      .clone(at::MemoryFormat::Contiguous);
}

at::Tensor read_image(const std::filesystem::path& path, const PictureOptions& options) {
  at::Tensor image = at::empty({options.channels, options.height, options.width}, at::kByte);
  read_picture(path, options, nullptr, image.mutable_data_ptr<std::uint8_t>());
  return image;
}

}  // namespace axial::data
