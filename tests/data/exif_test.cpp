// Pictures that a camera was turned for: all eight orientations, and Exif that says something else or nothing.
#include "data/exif.h"

#include <ATen/ATen.h>

#include "data/image.h"
#include "image_files.h"
#include "support.h"

namespace axial::data::test {
namespace {

// Exif with an entry before the orientation, as cameras write it; `type` 3 is a 16-bit integer.
Bytes exif(int orientation, bool big_endian, int type = 3, std::uint32_t count = 1) {
  Bytes out{'E', 'x', 'i', 'f', 0, 0};
  const auto put = [&](std::uint32_t value, int width) {
    for (int i = 0; i < width; ++i) {
      out.push_back(static_cast<std::uint8_t>(value >> 8 * (big_endian ? width - 1 - i : i)));
    }
  };
  put(big_endian ? 0x4d4du : 0x4949u, 2);  // MM or II
  put(42, 2);
  put(8, 4);  // the directory follows at once
  put(2, 2);
  for (const std::uint32_t number : {0x0100u, 4u}) put(number, 2);  // image width, 32-bit
  put(1, 4);
  put(40, 4);
  put(0x0112, 2);
  put(static_cast<std::uint32_t>(type), 2);
  put(count, 4);
  put(static_cast<std::uint32_t>(orientation), 2);
  put(0, 2);
  put(0, 4);  // no further directory
  return out;
}

int orientation_of(const Bytes& bytes) { return exif_orientation(bytes.data(), bytes.size()); }

TEST(Exif, OrientationInBothByteOrders) {
  for (const bool big_endian : {false, true}) {
    for (int value = 1; value <= 8; ++value) EXPECT_EQ(orientation_of(exif(value, big_endian)), value);
    for (const int value : {0, 9, 256, 65535}) EXPECT_EQ(orientation_of(exif(value, big_endian)), 1) << value;
    EXPECT_EQ(orientation_of(exif(6, big_endian, /*type=*/4)), 1);
    EXPECT_EQ(orientation_of(exif(6, big_endian, 3, /*count=*/2)), 1);
  }
}

TEST(Exif, WhateverIsCutOrDamagedIsReadInsideOfItsBounds) {
  EXPECT_EQ(exif_orientation(nullptr, 0), 1);
  const Bytes whole = exif(6, true);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));  // allocated exactly
    EXPECT_TRUE(orientation_of(part) == 1 || orientation_of(part) == 6) << size;
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int bits : {0x01, 0x80, 0xff}) {
      Bytes damaged = whole;
      damaged[at] = static_cast<std::uint8_t>(damaged[at] ^ bits);
      const int found = orientation_of(damaged);
      EXPECT_TRUE(found >= 1 && found <= 8) << at;
    }
  }
}

TEST(Exif, EveryOrientationIsTurnedUpright) {
  // Smooth, so that JPEG keeps it, and different in every corner.
  constexpr std::int64_t kHeight = 24, kWidth = 40;
  const at::Tensor rows = at::arange(kHeight).view({kHeight, 1}), columns = at::arange(kWidth).view({1, kWidth});
  const at::Tensor stored = (20 + 5 * rows + 2 * columns).to(at::kByte);  // [H, W]
  const Bytes pixels(stored.const_data_ptr<std::uint8_t>(), stored.const_data_ptr<std::uint8_t>() + stored.numel());
  // Exif 2.3, table of orientations: where row 0 and column 0 of the stored picture are seen.
  const at::Tensor seen[] = {
      stored,                   // 1: top, left
      stored.flip({1}),         // 2: top, right
      stored.flip({0, 1}),      // 3: bottom, right
      stored.flip({0}),         // 4: bottom, left
      stored.t(),               // 5: left, top
      stored.t().flip({1}),     // 6: right, top
      stored.t().flip({0, 1}),  // 7: right, bottom
      stored.t().flip({0}),     // 8: left, bottom
  };
  TempDir dir;
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const JpegKind kind{
        .width = kWidth, .height = kHeight, .components = 1, .app1 = exif(orientation, orientation % 2)};
    write_jpeg(dir / "a.jpg", kind, pixels);
    const at::Tensor expected = seen[orientation - 1];
    for (const std::int64_t channels : {1, 3}) {
      const at::Tensor image = read_image(dir / "a.jpg", channels);
      ASSERT_EQ(image.sizes().slice(1), expected.sizes()) << orientation;
      EXPECT_LE((image[channels - 1].to(at::kInt) - expected.to(at::kInt)).abs().max().item<int>(), 3) << orientation;
    }
  }
}

}  // namespace
}  // namespace axial::data::test
