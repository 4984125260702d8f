#include "data/picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "data/files.h"
#include "data/random.h"
#include "data/resize.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 30;
constexpr std::uint32_t kCropAttempts = 10;
constexpr int kBarColour[3] = {124, 116, 104}, kBarGray = 114;

bool starts_with(const std::vector<std::uint8_t>& bytes, const char* magic, std::size_t size, std::size_t at = 0) {
  return bytes.size() >= at + size && std::memcmp(bytes.data() + at, magic, size) == 0;
}

// "42 4d 36 10 (BMP)": enough to see what a misnamed file is.
std::string first_bytes(const std::vector<std::uint8_t>& file) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(4, file.size()); ++i) {
    char byte[8];
    std::snprintf(byte, sizeof byte, "%s%02x", i ? " " : "", file[i]);
    text += byte;
  }
  if (starts_with(file, "BM", 2)) text += " (BMP)";
  if (starts_with(file, "GIF8", 4)) text += " (GIF)";
  if (starts_with(file, "RIFF", 4) && starts_with(file, "WEBP", 4, 8)) text += " (WebP)";
  if (starts_with(file, "II*\0", 4) || starts_with(file, "MM\0*", 4)) text += " (TIFF)";
  return text;
}

// BT.601 in 16-bit fixed point; the weights add up to 65536.
std::uint8_t luma(int r, int g, int b) {
  return static_cast<std::uint8_t>((19595 * r + 38470 * g + 7471 * b + 32768) >> 16);
}

// Any decoder's pixels to gray or RGB; alpha is laid over black.
Pixels with_channels(Pixels pixels, std::int64_t channels) {
  if (pixels.channels == channels) return pixels;
  Pixels result;
  result.height = pixels.height;
  result.width = pixels.width;
  result.channels = channels;
  result.left = pixels.left;
  result.allocate();
  const std::int64_t from = pixels.channels, count = pixels.height * pixels.width;
  const bool colour = from >= 3, alpha = from % 2 == 0;
  const std::uint8_t* p = pixels.bytes.data();
  std::uint8_t* out = result.bytes.data();
  for (std::int64_t i = 0; i < count; ++i, p += from, out += channels) {
    int rgb[3] = {p[0], colour ? p[1] : p[0], colour ? p[2] : p[0]};
    if (alpha) {
      for (int& value : rgb) value = (value * p[from - 1] + 127) / 255;
    }
    if (channels == 1) {
      out[0] = luma(rgb[0], rgb[1], rgb[2]);
    } else {
      for (int c = 0; c < 3; ++c) out[c] = static_cast<std::uint8_t>(rgb[c]);
    }
  }
  return result;
}

// What is seen of a picture, and where of the wanted pixels it goes.
struct Placing {
  Region region;  // of the upright picture, whole pixels
  std::int64_t y = 0, x = 0, height = 0, width = 0;
};

Region middle(std::int64_t rows, std::int64_t columns, std::int64_t height, std::int64_t width) {
  const std::int64_t y = (height - rows) / 2, x = (width - columns) / 2;
  return {static_cast<double>(y), static_cast<double>(x), static_cast<double>(rows), static_cast<double>(columns)};
}

std::int64_t whole(double size, std::int64_t most) { return std::clamp<std::int64_t>(std::llround(size), 1, most); }

Placing place(const PictureOptions& o, std::int64_t height, std::int64_t width) {
  const double h = static_cast<double>(height), w = static_cast<double>(width);
  const double up_y = static_cast<double>(o.height) / h, up_x = static_cast<double>(o.width) / w;
  Placing p{{}, 0, 0, o.height, o.width};
  if (o.crop_mode == CropMode::kCenter) {
    const double scale = std::max(up_y, up_x) / o.crop_pct;
    p.region = middle(whole(static_cast<double>(o.height) / scale, height),
                      whole(static_cast<double>(o.width) / scale, width), height, width);
    return p;
  }
  p.region = middle(whole(h * o.crop_pct, height), whole(w * o.crop_pct, width), height, width);
  if (o.crop_mode == CropMode::kBorder) {
    const double scale = std::min(up_y, up_x);
    p.height = whole(h * scale, o.height);
    p.width = whole(w * scale, o.width);
    p.y = (o.height - p.height) / 2;
    p.x = (o.width - p.width) / 2;
  }
  return p;
}

// As torchvision draws it: area and proportions first; where ten draws do not fit, the largest middle part whose
// proportions are allowed.
Region draw_region(const RandomCrop& crop, const PictureOptions& o, std::int64_t height, std::int64_t width) {
  const double area = static_cast<double>(height) * static_cast<double>(width);
  const double wanted = static_cast<double>(o.width) / static_cast<double>(o.height);
  const double low = std::log(crop.ratio[0]), high = std::log(crop.ratio[1]);
  for (std::uint32_t attempt = 0; attempt < kCropAttempts; ++attempt) {
    const kernels::Philox4 words = draw(crop.key, crop.item, attempt);
    const double part = area * (crop.scale[0] + unit(words.x[0]) * (crop.scale[1] - crop.scale[0]));
    const double ratio = wanted * std::exp(low + unit(words.x[1]) * (high - low));
    const std::int64_t w = std::llround(std::sqrt(part * ratio)), h = std::llround(std::sqrt(part / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    return {static_cast<double>(below(words.x[2], height - h + 1)),
            static_cast<double>(below(words.x[3], width - w + 1)), static_cast<double>(h), static_cast<double>(w)};
  }
  const double has = static_cast<double>(width) / static_cast<double>(height);
  const double ratio = std::clamp(has, wanted * crop.ratio[0], wanted * crop.ratio[1]);
  const std::int64_t w = has < ratio ? width : whole(static_cast<double>(height) * ratio, width);
  const std::int64_t h = has > ratio ? height : whole(static_cast<double>(width) / ratio, height);
  return middle(h, w, height, width);
}

// by: what the pixels are reduced by, relative to what the placing speaks of.
void draw_placed(const Pixels& pixels, const Placing& p, int by, const PictureOptions& o, std::uint8_t* out) {
  const std::int64_t plane = o.height * o.width;
  if (p.height != o.height || p.width != o.width) {
    for (std::int64_t c = 0; c < o.channels; ++c) {
      std::memset(out + c * plane, o.channels == 1 ? kBarGray : kBarColour[c], static_cast<std::size_t>(plane));
    }
  }
  const Region region{p.region.y / by, p.region.x / by - static_cast<double>(pixels.left), p.region.height / by,
                      p.region.width / by};
  resize(pixels, region, {out + p.y * o.width + p.x, p.height, p.width, o.width, plane});
}

}  // namespace

Pixels open_picture(const fs::path& path, std::int64_t channels, const Choose& choose) {
  if (channels != 1 && channels != 3) {
    fail(path, "asked for " + std::to_string(channels) + " channels, expected 1 or 3");
  }
  InputFile input(path);
  if (input.compressed()) fail(path, "is compressed with gzip, expected a PNG or JPEG image");  // a bomb, perhaps
  const std::vector<std::uint8_t> file = input.read(kMostFileBytes + 1);
  if (file.empty()) fail(path, "is empty, expected a PNG or JPEG image");
  if (file.size() > kMostFileBytes) fail(path, "is larger than " + std::to_string(kMostFileBytes) + " bytes");
  if (starts_with(file, "\x89PNG\r\n\x1a\n", 8)) return with_channels(decode_png(path, file), channels);
  if (starts_with(file, "\xff\xd8\xff", 3)) {
    return with_channels(decode_jpeg(path, file, channels == 1, choose), channels);
  }
  fail(path, "starts with " + first_bytes(file) + ", expected a PNG or JPEG image");
}

void read_picture(const fs::path& path, const PictureOptions& options, const RandomCrop* crop, std::uint8_t* out) {
  Placing placing;
  int by = 1;
  const auto choose = [&](std::int64_t height, std::int64_t width) -> Enough {
    placing = place(options, height, width);
    if (crop != nullptr) {
      placing = {draw_region(*crop, options, height, width), 0, 0, options.height, options.width};
    }
    const double least = std::min(placing.region.height / static_cast<double>(placing.height),
                                  placing.region.width / static_cast<double>(placing.width));
    while (by < 8 && least >= 2 * by * kReduced) by *= 2;
    const auto begin = static_cast<std::int64_t>(placing.region.x);
    return {by, begin, begin + static_cast<std::int64_t>(placing.region.width)};
  };
  const Pixels pixels = open_picture(path, options.channels, choose);
  if (placing.height == 0) {  // no JPEG: nobody has asked
    choose(pixels.height, pixels.width);
    by = 1;
  }
  draw_placed(pixels, placing, by, options, out);
}

void fit_picture(const Pixels& pixels, const PictureOptions& options, std::uint8_t* out) {
  draw_placed(pixels, place(options, pixels.height, pixels.width), 1, options, out);
}

}  // namespace axial::data
