// Decoding what libpng and libjpeg wrote, and what is no image.
#include "data/image.h"

#include <ATen/ATen.h>

#include "image_files.h"
#include "support.h"

namespace axial::data::test {
namespace {

std::string error_of_reading(const std::filesystem::path& path, std::int64_t channels = 3) {
  std::string text = error_of([&] { read_image(path, channels); });
  expect_parts(text, {path.string() + ": "});
  return text;
}

// [C, H, W] from a flat list
at::Tensor image_of(const std::vector<int>& values, at::IntArrayRef shape) {
  return at::tensor(values, at::kInt).to(at::kByte).view(shape);
}

TEST(Png, Rgb8) {
  TempDir dir;
  write_png(dir / "a", {.width = 2, .height = 2, .type = PNG_COLOR_TYPE_RGB},
            {1, 2, 3, 255, 0, 0, 0, 255, 0, 10, 20, 30});
  EXPECT_TRUE(at::equal(read_image(dir / "a", 3), image_of({1, 255, 0, 10, 2, 0, 255, 20, 3, 0, 0, 30}, {3, 2, 2})));
  // Luma: 0.299 R + 0.587 G + 0.114 B.
  EXPECT_TRUE(at::equal(read_image(dir / "a", 1), image_of({2, 76, 150, 18}, {1, 2, 2})));
}

TEST(Png, GrayOfEveryDepth) {
  TempDir dir;
  write_png(dir / "1", {.width = 8, .height = 1, .depth = 1, .type = PNG_COLOR_TYPE_GRAY}, {0b10110001});
  EXPECT_TRUE(at::equal(read_image(dir / "1", 1), image_of({255, 0, 255, 255, 0, 0, 0, 255}, {1, 1, 8})));
  write_png(dir / "2", {.width = 4, .height = 1, .depth = 2, .type = PNG_COLOR_TYPE_GRAY}, {0b00011011});
  EXPECT_TRUE(at::equal(read_image(dir / "2", 1), image_of({0, 85, 170, 255}, {1, 1, 4})));
  write_png(dir / "4", {.width = 2, .height = 1, .depth = 4, .type = PNG_COLOR_TYPE_GRAY}, {0x1f});
  EXPECT_TRUE(at::equal(read_image(dir / "4", 1), image_of({17, 255}, {1, 1, 2})));
  write_png(dir / "8", {.width = 2, .height = 1, .type = PNG_COLOR_TYPE_GRAY}, {7, 250});
  EXPECT_TRUE(at::equal(read_image(dir / "8", 3), image_of({7, 250, 7, 250, 7, 250}, {3, 1, 2})));
  // 16 bits, rounded: 0x0100 / 257 = 0.996, 0xff00 / 257 = 254.0.
  write_png(dir / "16", {.width = 3, .height = 1, .depth = 16, .type = PNG_COLOR_TYPE_GRAY},
            {1, 0, 0xff, 0, 0x7f, 0xff});
  EXPECT_TRUE(at::equal(read_image(dir / "16", 1), image_of({1, 254, 127}, {1, 1, 3})));
}

TEST(Png, Rgb16) {
  TempDir dir;
  write_png(dir / "a", {.width = 1, .height = 1, .depth = 16, .type = PNG_COLOR_TYPE_RGB},
            {0x12, 0x12, 0, 0, 0xff, 0xff});
  EXPECT_TRUE(at::equal(read_image(dir / "a", 3), image_of({0x12, 0, 255}, {3, 1, 1})));
}

TEST(Png, AlphaIsLaidOverBlack) {
  TempDir dir;
  write_png(dir / "rgba", {.width = 3, .height = 1, .type = PNG_COLOR_TYPE_RGB_ALPHA},
            {200, 100, 50, 255, 200, 100, 50, 128, 200, 100, 50, 0});
  EXPECT_TRUE(at::equal(read_image(dir / "rgba", 3), image_of({200, 100, 0, 100, 50, 0, 50, 25, 0}, {3, 1, 3})));
  write_png(dir / "ga", {.width = 2, .height = 1, .type = PNG_COLOR_TYPE_GRAY_ALPHA}, {200, 255, 200, 128});
  EXPECT_TRUE(at::equal(read_image(dir / "ga", 1), image_of({200, 100}, {1, 1, 2})));
  // One colour declared transparent.
  write_png(dir / "trns", {.width = 2, .height = 1, .type = PNG_COLOR_TYPE_GRAY, .transparent_gray = 9}, {9, 10});
  EXPECT_TRUE(at::equal(read_image(dir / "trns", 1), image_of({0, 10}, {1, 1, 2})));
}

TEST(Png, PaletteOfFewBits) {
  TempDir dir;
  PngKind kind{.width = 4, .height = 2, .depth = 2, .type = PNG_COLOR_TYPE_PALETTE};
  kind.palette = {{1, 2, 3}, {40, 50, 60}, {255, 255, 255}, {9, 8, 7}};
  write_png(dir / "a", kind, {0b00011011, 0b11100100});
  EXPECT_TRUE(at::equal(read_image(dir / "a", 3)[0], image_of({1, 40, 255, 9, 9, 255, 40, 1}, {2, 4})));
  EXPECT_TRUE(at::equal(read_image(dir / "a", 3)[2], image_of({3, 60, 255, 7, 7, 255, 60, 3}, {2, 4})));
}

TEST(Png, PaletteWithTransparentColours) {
  TempDir dir;
  for (const bool interlaced : {false, true}) {
    PngKind kind{.width = 3, .height = 2, .type = PNG_COLOR_TYPE_PALETTE, .interlaced = interlaced};
    kind.palette = {{200, 100, 50}, {40, 50, 60}, {255, 255, 255}};
    kind.palette_alpha = {128, 0};  // the third is opaque
    write_png(dir / "a", kind, {0, 1, 2, 2, 1, 0});
    EXPECT_TRUE(at::equal(read_image(dir / "a", 3)[0], image_of({100, 0, 255, 255, 0, 100}, {2, 3}))) << interlaced;
    EXPECT_TRUE(at::equal(read_image(dir / "a", 3)[2], image_of({25, 0, 255, 255, 0, 25}, {2, 3}))) << interlaced;
  }
}

// libpng takes it for black, or for whatever stands behind the palette.
TEST(Png, AColourThatThePaletteLacksIsDamage) {
  TempDir dir;
  for (const bool interlaced : {false, true}) {
    PngKind kind{.width = 4, .height = 2, .depth = 2, .type = PNG_COLOR_TYPE_PALETTE, .interlaced = interlaced};
    kind.palette = {{1, 2, 3}, {40, 50, 60}, {255, 255, 255}};
    write_png(dir / "a.png", kind, {0b00011000, 0b10100100});
    EXPECT_NO_THROW(read_image(dir / "a.png", 3));
    write_png(dir / "a.png", kind, {0b00011000, 0b10100111});
    EXPECT_EQ(error_of_reading(dir / "a.png"),
              (dir / "a.png").string() + ": damaged PNG (a pixel of colour 3, in its palette are 3, from 0)");
    kind.depth = 8;
    kind.palette_alpha = {0};
    write_png(dir / "a.png", kind, {0, 1, 2, 0, 1, 2, 0, 200});
    expect_parts(error_of_reading(dir / "a.png"),
                 {"damaged PNG (a pixel of colour 200, in its palette are 3, from 0)"});
  }
}

TEST(Png, Interlaced) {
  TempDir dir;
  const Bytes pixels = counting(13 * 11 * 3);
  write_png(dir / "plain", {.width = 13, .height = 11, .type = PNG_COLOR_TYPE_RGB}, pixels);
  write_png(dir / "laced", {.width = 13, .height = 11, .type = PNG_COLOR_TYPE_RGB, .interlaced = true}, pixels);
  EXPECT_TRUE(at::equal(read_image(dir / "plain", 3), read_image(dir / "laced", 3)));
}

TEST(Png, Case27CutOrDamaged) {
  TempDir dir;
  write_png(dir / "a.png", {.width = 40, .height = 40, .type = PNG_COLOR_TYPE_RGB}, counting(4800));
  const Bytes whole = read_back(dir / "a.png");
  for (const double share : {0.99, 0.6, 0.1}) {
    write(dir / "a.png", cut(whole, share));
    expect_parts(error_of_reading(dir / "a.png"), {"PNG"});
  }
  write(dir / "a.png", Bytes(whole.begin(), whole.begin() + 8));  // the signature alone
  expect_parts(error_of_reading(dir / "a.png"), {"damaged PNG"});
  for (std::size_t at = 9; at < whole.size(); at += 7) {
    Bytes damaged = whole;
    damaged[at] ^= 0x55;
    write(dir / "a.png", damaged);
    try {
      read_image(dir / "a.png", 3);  // only what no pixel depends on may go unnoticed
    } catch (const DataError&) {
    }
  }
}

TEST(Png, Case27HugePromisesAreRefusedFromTheHeader) {
  TempDir dir;
  write_png(dir / "a.png", {.width = 4, .height = 4, .type = PNG_COLOR_TYPE_GRAY}, counting(16));
  Bytes bytes = read_back(dir / "a.png");
  const auto promise = [&](std::uint32_t width, std::uint32_t height) {
    for (int i = 0; i < 4; ++i) bytes[16 + i] = static_cast<std::uint8_t>(width >> (24 - 8 * i));
    for (int i = 0; i < 4; ++i) bytes[20 + i] = static_cast<std::uint8_t>(height >> (24 - 8 * i));
    const std::uint32_t crc = static_cast<std::uint32_t>(crc32(0, bytes.data() + 12, 17));
    for (int i = 0; i < 4; ++i) bytes[29 + i] = static_cast<std::uint8_t>(crc >> (24 - 8 * i));
    write(dir / "a.png", bytes);
  };
  promise(100'000, 100'000);
  expect_parts(error_of_reading(dir / "a.png"), {"100000 x 100000", "at most 100000000"});
  promise(9'000, 9'000);
  expect_parts(error_of_reading(dir / "a.png"), {"9000 x 9000", "more than its"});
  promise(0x7fffffff, 0x7fffffff);
  expect_parts(error_of_reading(dir / "a.png"), {"PNG"});
}

// A smooth picture survives JPEG nearly unchanged.
Bytes gradient(int width, int height, int components) {
  Bytes out;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < components; ++c) {
        out.push_back(static_cast<std::uint8_t>((c % 2 ? 250 - 3 * y - x : 20 + 2 * x + y) - 5 * c));
      }
    }
  }
  return out;
}

at::Tensor planes(const Bytes& pixels, std::int64_t height, std::int64_t width, std::int64_t channels) {
  return at::tensor(std::vector<int>(pixels.begin(), pixels.end()), at::kInt)
      .view({height, width, channels})
      .permute({2, 0, 1});
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kInt) - b.to(at::kInt)).abs().max().item<int>();
}

TEST(Jpeg, RgbAndGray) {
  TempDir dir;
  const Bytes rgb = gradient(40, 30, 3), gray = gradient(40, 30, 1);
  write_jpeg(dir / "rgb", {.width = 40, .height = 30, .components = 3}, rgb);
  write_jpeg(dir / "gray", {.width = 40, .height = 30, .components = 1}, gray);
  write_jpeg(dir / "progressive", {.width = 40, .height = 30, .components = 3, .progressive = true}, rgb);
  const at::Tensor expected = planes(rgb, 30, 40, 3);
  EXPECT_EQ(read_image(dir / "rgb", 3).sizes(), at::IntArrayRef({3, 30, 40}));
  EXPECT_LE(largest_difference(read_image(dir / "rgb", 3), expected), 8);
  EXPECT_TRUE(at::equal(read_image(dir / "rgb", 3), read_image(dir / "progressive", 3)));
  EXPECT_LE(largest_difference(read_image(dir / "gray", 1), planes(gray, 30, 40, 1)), 3);
  EXPECT_LE(largest_difference(read_image(dir / "gray", 3), planes(gray, 30, 40, 1)), 3);
  const at::Tensor luma = expected[0] * 0.299 + expected[1] * 0.587 + expected[2] * 0.114;
  EXPECT_LE(largest_difference(read_image(dir / "rgb", 1)[0], luma.round()), 4);
}

TEST(Jpeg, CmykAndYcck) {
  TempDir dir;
  const Bytes ink = gradient(32, 24, 4);
  const at::Tensor stored = planes(ink, 24, 32, 4);
  // libjpeg marks CMYK as Adobe's, in which the stored number is 255 minus the ink.
  const at::Tensor expected = (stored.narrow(0, 0, 3) * stored.narrow(0, 3, 1)).to(at::kDouble).div(255).round();
  for (const J_COLOR_SPACE space : {JCS_CMYK, JCS_YCCK}) {
    write_jpeg(dir / "a", {.width = 32, .height = 24, .components = 4, .space = space}, ink);
    EXPECT_EQ(read_image(dir / "a", 3).sizes(), at::IntArrayRef({3, 24, 32}));
    EXPECT_LE(largest_difference(read_image(dir / "a", 3), expected), 10) << space;
    EXPECT_EQ(read_image(dir / "a", 1).sizes(), at::IntArrayRef({1, 24, 32}));
  }
  // Without the marker the number is the ink.
  write_jpeg(dir / "a", {.width = 32, .height = 24, .components = 4, .space = JCS_CMYK, .adobe_marker = false}, ink);
  const at::Tensor paper = 255 - stored;
  const at::Tensor inverted = (paper.narrow(0, 0, 3) * paper.narrow(0, 3, 1)).to(at::kDouble).div(255).round();
  EXPECT_LE(largest_difference(read_image(dir / "a", 3), inverted), 10);
}

TEST(Jpeg, Case27Cut) {
  TempDir dir;
  for (const bool progressive : {false, true}) {
    write_jpeg(dir / "a.jpg", {.width = 64, .height = 64, .components = 3, .progressive = progressive},
               gradient(64, 64, 3));
    const Bytes whole = read_back(dir / "a.jpg");
    for (const double share : {0.99, 0.6, 0.3, 0.02}) {
      write(dir / "a.jpg", cut(whole, share));
      expect_parts(error_of_reading(dir / "a.jpg"), {"JPEG"});
    }
    for (std::size_t at = 3; at < whole.size(); at += 5) {  // whatever is broken, the process lives
      Bytes damaged = whole;
      damaged[at] ^= 0x55;
      write(dir / "a.jpg", damaged);
      try {
        read_image(dir / "a.jpg", 3);
      } catch (const DataError&) {
      }
    }
  }
}

TEST(Jpeg, Case27HugePromiseIsRefusedFromTheHeader) {
  TempDir dir;
  write_jpeg(dir / "a.jpg", {.width = 16, .height = 16, .components = 1}, gradient(16, 16, 1));
  Bytes bytes = read_back(dir / "a.jpg");
  for (std::size_t at = 0; at + 9 < bytes.size(); ++at) {
    if (bytes[at] == 0xff && bytes[at + 1] == 0xc0) {  // start of frame: length, precision, height, width
      for (std::size_t i = 5; i < 9; ++i) bytes[at + i] = 0xfa;
    }
  }
  write(dir / "a.jpg", bytes);
  expect_parts(error_of_reading(dir / "a.jpg"), {"64250 x 64250", "at most 100000000"});
  // Fewer, and still more than so few bytes can hold: refused before there is room for them.
  for (std::size_t at = 0; at + 9 < bytes.size(); ++at) {
    if (bytes[at] == 0xff && bytes[at + 1] == 0xc0) {
      for (const std::size_t i : {5u, 7u}) bytes[at + i] = 0x20, bytes[at + i + 1] = 0;
    }
  }
  write(dir / "a.jpg", bytes);
  expect_parts(error_of_reading(dir / "a.jpg"),
               {"JPEG promises 8192 x 8192", "more than its " + std::to_string(bytes.size()) + " bytes can hold"});
}

TEST(Images, Case27WhatIsNoImageIsNamed) {
  TempDir dir;
  Bytes bmp{'B', 'M', 70, 0, 0, 0};
  bmp.resize(70);
  write(dir / "bitmap.jpg", bmp);
  expect_parts(error_of_reading(dir / "bitmap.jpg"), {"42 4d 46 00 (BMP)", "expected a PNG or JPEG"});
  write(dir / "empty.png", {});
  expect_parts(error_of_reading(dir / "empty.png"), {"is empty"});
  write(dir / "one.png", {0x89});
  expect_parts(error_of_reading(dir / "one.png"), {"starts with 89"});
  expect_parts(error_of_reading(dir / "absent.png"), {"no such file"});
  expect_parts(error_of_reading(dir.path()), {"is a folder"});
  expect_parts(error_of_reading(dir / "one.png", 2), {"2 channels"});
}

TEST(Images, Case27GzipIsRefusedFromItsFirstBytes) {
  TempDir dir;
  write(dir / "a.png", Bytes{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3});
  expect_parts(error_of_reading(dir / "a.png"), {"gzip", "expected a PNG or JPEG"});
}

TEST(Images, ContentDecidesNotTheName) {
  TempDir dir;
  write_png(dir / "a.jpg", {.width = 1, .height = 1, .type = PNG_COLOR_TYPE_GRAY}, {77});
  EXPECT_EQ(read_image(dir / "a.jpg", 1).item<std::uint8_t>(), 77);
}

}  // namespace
}  // namespace axial::data::test
