// From a decoded picture to the wanted pixels: Pillow's numbers, crops, bars, and reduced decoding.
#include "data/picture.h"

#include <algorithm>
#include <cmath>

#include "data/random.h"
#include "data/resize.h"
#include "image_files.h"
#include "support.h"

namespace axial::data::test {
namespace {

Pixels pixels_of(std::int64_t height, std::int64_t width, std::int64_t channels, const Bytes& bytes) {
  Pixels pixels;
  pixels.height = height;
  pixels.width = width;
  pixels.channels = channels;
  pixels.allocate();
  std::copy(bytes.begin(), bytes.end(), pixels.bytes.data());
  return pixels;
}

Bytes resized(const Pixels& in, const Region& region, std::int64_t height, std::int64_t width) {
  Bytes out(static_cast<std::size_t>(in.channels * height * width));
  resize(in, region, {out.data(), height, width, width, height * width});
  return out;
}

// (7 y^2 + 13 x + 31 c x y) mod 256
Pixels pattern(std::int64_t height, std::int64_t width) {
  Bytes bytes;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t c = 0; c < 3; ++c)
        bytes.push_back(static_cast<std::uint8_t>(7 * y * y + 13 * x + 31 * c * x * y));
    }
  }
  return pixels_of(height, width, 3, bytes);
}

// Pillow 12's Image.crop(box).resize(size, BILINEAR).
TEST(Resize, IsPillowsToTheByte) {
  const Pixels in = pattern(17, 23);
  EXPECT_EQ(
      resized(in, {0, 0, 17, 23}, 4, 5),
      (Bytes{72,  119, 159, 156, 91,  129, 128, 134, 118, 119, 144, 120, 133, 118, 130, 103, 133, 145, 128, 102,
             106, 120, 134, 139, 126, 140, 149, 137, 119, 102, 143, 148, 142, 115, 110, 146, 153, 154, 133, 126,
             101, 127, 140, 137, 135, 141, 121, 119, 122, 121, 136, 127, 137, 121, 106, 139, 130, 116, 125, 112}));
  EXPECT_EQ(resized(in, {2, 3, 3, 5}, 7, 6),
            (Bytes{67,  77,  88,  98,  109, 119, 72,  82,  93,  103, 114, 124, 87,  97,  108, 118, 129, 139,
                   102, 112, 123, 133, 144, 154, 123, 133, 144, 154, 165, 175, 144, 154, 165, 175, 186, 196,
                   151, 161, 172, 182, 193, 203, 253, 117, 116, 178, 177, 41,  235, 130, 120, 170, 173, 40,
                   180, 167, 132, 148, 162, 39,  125, 205, 144, 125, 150, 37,  76,  166, 116, 108, 144, 41,
                   27,  127, 88,  92,  138, 46,  11,  114, 79,  86,  136, 47,  183, 94,  144, 151, 116, 219,
                   178, 96,  132, 146, 131, 213, 163, 100, 95,  132, 175, 194, 148, 105, 58,  117, 219, 176,
                   139, 116, 91,  126, 186, 164, 130, 127, 124, 136, 154, 151, 127, 131, 135, 139, 143, 147}));
  EXPECT_EQ(resized(in, {1, 0, 3, 23}, 6, 4),
            (Bytes{45,  112, 188, 139, 50,  117, 189, 124, 61,  128, 190, 93,  75,  142, 179, 73,  92,  159,
                   154, 62,  101, 168, 142, 56,  105, 124, 132, 136, 114, 124, 131, 137, 133, 123, 128, 139,
                   136, 127, 124, 138, 123, 138, 120, 134, 116, 143, 118, 132, 121, 131, 119, 119, 120, 138,
                   119, 124, 117, 151, 118, 134, 115, 148, 119, 133, 114, 128, 120, 121, 114, 118, 120, 115}));
}

TEST(Resize, GrayIsAChannelOfRgb) {
  const Pixels rgb = pattern(31, 40);
  Bytes green;
  for (std::int64_t i = 0; i < 31 * 40; ++i) green.push_back(rgb.bytes.data()[3 * i + 1]);
  const Pixels gray = pixels_of(31, 40, 1, green);
  for (const auto& [h, w] : {std::pair{7, 9}, {50, 3}, {31, 40}}) {
    const Bytes colour = resized(rgb, {0.5, 1.25, 30, 38}, h, w);
    const auto from = colour.begin() + h * w;
    EXPECT_EQ(resized(gray, {0.5, 1.25, 30, 38}, h, w), Bytes(from, from + h * w));
  }
}

// The fast way and the plain one agree to the byte, at every edge and for every number of taps.
TEST(Resize, EveryProcessorMakesTheSameBytes) {
  for (std::uint64_t i = 0; i < 400; ++i) {
    const kernels::Philox4 a = draw(3, i, 0), b = draw(3, i, 1);
    const std::int64_t height = 1 + below(a.x[0], 70), width = 1 + below(a.x[1], i % 4 == 0 ? 400 : 70);
    const std::int64_t to_height = 1 + below(a.x[2], 40), to_width = 1 + below(a.x[3], i % 8 == 0 ? 5 : 60);
    Bytes bytes;
    for (std::int64_t k = 0; k < height * width * 3; ++k)
      bytes.push_back(
          static_cast<std::uint8_t>(draw(i, static_cast<std::uint64_t>(k), 9).x[0] >> (k % 5 == 0 ? 31 : 24)));
    const Pixels rgb = pixels_of(height, width, 3, bytes);
    const double y = unit(b.x[0]) * static_cast<double>(height) / 2,
                 x = unit(b.x[1]) * static_cast<double>(width) / 2;
    const Region region{y, x, (static_cast<double>(height) - y) * (0.1 + 0.9 * unit(b.x[2])),
                        (static_cast<double>(width) - x) * (0.1 + 0.9 * unit(b.x[3]))};
    const Bytes all = resized(rgb, region, to_height, to_width);
    for (std::int64_t c = 0; c < 3; ++c) {  // one channel takes the plain way always
      Bytes one;
      for (std::int64_t k = 0; k < height * width; ++k) one.push_back(bytes[static_cast<std::size_t>(3 * k + c)]);
      const auto from = all.begin() + c * to_height * to_width;
      ASSERT_EQ(resized(pixels_of(height, width, 1, one), region, to_height, to_width),
                Bytes(from, from + to_height * to_width))
          << height << "x" << width << " to " << to_height << "x" << to_width << ", channel " << c;
    }
  }
}

TEST(Resize, AveragesWhenShrinkingAndKeepsWhatIsConstant) {
  for (const auto& [h, w] : {std::pair{5, 40}, {17, 23}, {1, 1}, {64, 3}}) {
    const Bytes out = resized(pixels_of(17, 23, 3, Bytes(17 * 23 * 3, 255)), {0, 0, 17, 23}, h, w);
    EXPECT_EQ(out, Bytes(out.size(), 255));
  }
  // Stripes one pixel wide become gray: without antialiasing they would stay black or white.
  Bytes stripes(64 * 64);
  for (std::size_t i = 0; i < stripes.size(); ++i) stripes[i] = i % 2 ? 255 : 0;
  const Bytes small = resized(pixels_of(64, 64, 1, stripes), {0, 0, 64, 64}, 8, 8);
  for (std::size_t i = 0; i < small.size(); ++i) {
    if (i % 8 == 0 || i % 8 == 7) continue;
    EXPECT_NEAR(small[i], 128, 8);
  }
  EXPECT_EQ(resized(pixels_of(64, 64, 1, stripes), {0, 0, 64, 64}, 64, 64), stripes);
}

Bytes fitted(const Pixels& pixels, const PictureOptions& options) {
  Bytes out(static_cast<std::size_t>(options.bytes()), 77);
  fit_picture(pixels, options, out.data());
  return out;
}

TEST(Fit, CenterKeepsProportionsAroundTheMiddle) {
  Bytes columns;
  for (int i = 0; i < 4 * 8; ++i) columns.push_back(static_cast<std::uint8_t>(10 * (i % 8)));
  const Pixels wide = pixels_of(4, 8, 1, columns);
  const Bytes middle = fitted(wide, {.channels = 1, .height = 4, .width = 4});
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(middle[i], 10 * (2 + i % 4));
  // Half of the sides is what is seen: columns 3 and 4.
  const Bytes half = fitted(wide, {.channels = 1, .height = 2, .width = 2, .crop_pct = 0.5});
  EXPECT_EQ(half, (Bytes{30, 40, 30, 40}));
  // Nothing is blown up without bound, whatever the proportions.
  fitted(pixels_of(1, 60000, 3, Bytes(180000, 1)), {.height = 32, .width = 32});
  fitted(pixels_of(60000, 1, 3, Bytes(180000, 1)), {.height = 32, .width = 64, .crop_pct = 0.1});
  EXPECT_EQ(fitted(pixels_of(1, 1, 3, Bytes(3, 9)), {.height = 64, .width = 16}), Bytes(3 * 64 * 16, 9));
}

TEST(Fit, SquashAndBorderShowAllOfIt) {
  Bytes columns;
  for (int i = 0; i < 4 * 8; ++i) columns.push_back(i % 8 < 4 ? 0 : 200);
  const Pixels wide = pixels_of(4, 8, 1, columns);
  const Bytes squashed = fitted(wide, {.channels = 1, .height = 4, .width = 4, .crop_mode = CropMode::kSquash});
  EXPECT_EQ(Bytes(squashed.begin(), squashed.begin() + 1), Bytes{0});
  EXPECT_EQ(squashed[3], 200);
  const Bytes bordered = fitted(wide, {.channels = 1, .height = 4, .width = 4, .crop_mode = CropMode::kBorder});
  for (std::size_t x = 0; x < 4; ++x) {
    EXPECT_EQ(bordered[x], 114) << "a bar above";
    EXPECT_EQ(bordered[12 + x], 114) << "and below";
    EXPECT_EQ(bordered[4 + x], squashed[x]) << "the whole between them";
  }
}

// A photograph: soft gradients, edges and noise.
Bytes photograph(int width, int height) {
  Bytes out;
  std::uint64_t pixel = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const kernels::Philox4 words = draw(7, pixel++, 0);
      for (int c = 0; c < 3; ++c) {
        const double wave =
            90 * std::sin(0.011 * x * (c + 1)) * std::cos(0.017 * y) + ((x / 40 + y / 30) % 2 ? 25 : -25);
        const double noise = 12 * (unit(words.x[c]) - 0.5);
        out.push_back(static_cast<std::uint8_t>(std::clamp(128 + wave + noise, 0.0, 255.0)));
      }
    }
  }
  return out;
}

TEST(Picture, ReducedDecodingLooksLikeTheWhole) {
  TempDir dir;
  const int width = 640, height = 421;
  write_jpeg(dir / "a.jpg", {.width = width, .height = height}, photograph(width, height));
  const Pixels whole = open_picture(dir / "a.jpg", 3);
  for (const std::int64_t size : {224, 160, 128, 64, 32}) {
    for (const std::int64_t other : {size, 2 * size / 3}) {
      const PictureOptions options{.height = size, .width = other};
      Bytes reduced(static_cast<std::size_t>(options.bytes()));
      read_picture(dir / "a.jpg", options, nullptr, reduced.data());
      const Bytes full = fitted(whole, options);
      double sum = 0, bias = 0;
      int most = 0;
      for (std::size_t i = 0; i < full.size(); ++i) {
        const int difference = reduced[i] - full[i];
        sum += std::abs(difference);
        bias += difference;
        most = std::max(most, std::abs(difference));
      }
      const double count = static_cast<double>(full.size());
      EXPECT_LT(sum / count, 1.5) << size << " x " << other;
      EXPECT_LT(std::abs(bias) / count, 0.1) << size << " x " << other;
      EXPECT_LT(most, 24) << size << " x " << other;
    }
  }
}

// Columns that are not wanted are not transformed; those that are have the whole decoding's bytes.
TEST(Picture, WhatIsLeftOutChangesNothing) {
  TempDir dir;
  for (const auto& size : {std::pair{500, 120}, {333, 90}, {97, 20}}) {
    const int width = size.first, height = size.second;  // not bound: clang before 16 captures no bindings
    for (const bool progressive : {false, true}) {
      write_jpeg(dir / "a.jpg", {.width = width, .height = height, .progressive = progressive},
                 photograph(width, height));
      const Pixels whole = open_picture(dir / "a.jpg", 3);
      bool any = false;
      for (const std::int64_t begin : {0, 1, 15, 16, 17, 40, width / 2, width - 20}) {
        for (const std::int64_t columns : {1, 9, 20, 31}) {
          if (begin + columns > width) continue;
          const Pixels part = open_picture(dir / "a.jpg", 3, [&](std::int64_t h, std::int64_t w) -> Enough {
            EXPECT_EQ(h, height);
            EXPECT_EQ(w, width);
            return {1, begin, begin + columns};
          });
          any = any || part.width < width;
          ASSERT_LE(part.left, begin);
          ASSERT_GE(part.left + part.width, begin + columns);
          for (std::int64_t y = 0; y < height; ++y) {
            for (std::int64_t x = begin; x < begin + columns; ++x) {
              for (std::int64_t c = 0; c < 3; ++c) {
                ASSERT_EQ(part.bytes.data()[(y * part.width + x - part.left) * 3 + c],
                          whole.bytes.data()[(y * width + x) * 3 + c])
                    << x << ", " << y << " of columns from " << begin;
              }
            }
          }
        }
      }
      EXPECT_TRUE(any);
      const PictureOptions options{.height = height, .width = height / 2};
      Bytes out(static_cast<std::size_t>(options.bytes()));
      read_picture(dir / "a.jpg", options, nullptr, out.data());
      EXPECT_EQ(out, fitted(whole, options));
    }
  }
}

TEST(Picture, RandomPartsAreDrawnFromKeyAndSampleAlone) {
  TempDir dir;
  // Pixels tell where they stand: red is the column, green the row.
  Bytes where;
  for (int y = 0; y < 100; ++y) {
    for (int x = 0; x < 200; ++x)
      where.insert(where.end(), {static_cast<std::uint8_t>(x), static_cast<std::uint8_t>(y), 0});
  }
  write_png(dir / "a.png", {.width = 200, .height = 100, .type = PNG_COLOR_TYPE_RGB}, where);
  const PictureOptions options{.height = 16, .width = 16};
  const auto read = [&](std::uint64_t key, std::uint64_t item) {
    const RandomCrop crop{key, item, {0.1, 0.5}, {0.75, 4.0 / 3}};
    Bytes out(static_cast<std::size_t>(options.bytes()));
    read_picture(dir / "a.png", options, &crop, out.data());
    return out;
  };
  EXPECT_EQ(read(1, 2), read(1, 2));
  EXPECT_NE(read(1, 2), read(1, 3));
  EXPECT_NE(read(1, 2), read(2, 2));
  double least = 1, most = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const Bytes out = read(9, i);
    // Between the centres of the outer pixels lie 15/16 of the part's sides.
    const double w = (out[15] - out[0]) * 16.0 / 15, h = (out[256 + 240] - out[256]) * 16.0 / 15;
    EXPECT_GT(w / h, 0.75 * 0.85);
    EXPECT_LT(w / h, 1.34 * 1.15);
    least = std::min(least, w * h / 20000);
    most = std::max(most, w * h / 20000);
  }
  EXPECT_NEAR(least, 0.1, 0.03);
  EXPECT_NEAR(most, 0.5, 0.06);
}

TEST(Picture, WhatFitsNoDrawIsTheLargestMiddlePart) {
  TempDir dir;
  write_png(dir / "a.png", {.width = 300, .height = 3, .type = PNG_COLOR_TYPE_GRAY}, Bytes(900, 50));
  const RandomCrop crop{1, 2, {0.9, 1}, {1, 1}};
  Bytes out(8 * 8);
  read_picture(dir / "a.png", {.channels = 1, .height = 8, .width = 8}, &crop, out.data());
  EXPECT_EQ(out, Bytes(64, 50));
}

}  // namespace
}  // namespace axial::data::test
