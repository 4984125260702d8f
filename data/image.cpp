#include "data/image.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include <ATen/ATen.h>

#include "data/decode.h"
#include "data/files.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 30;

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

void check_size(const at::Tensor& image, std::int64_t height, std::int64_t width) {
  if (image.dim() != 3 || image.scalar_type() != at::kByte || image.numel() == 0) {
    throw DataError("resize: expected a uint8 image [channels, H, W] that is not empty");
  }
  if (height < 1 || width < 1) {
    throw DataError("resize: to " + std::to_string(height) + " x " + std::to_string(width) +
                    ", expected 1 x 1 or more");
  }
}

}  // namespace

at::Tensor read_image(const fs::path& path, std::int64_t channels) {
  if (channels != 1 && channels != 3) {
    fail(path, "asked for " + std::to_string(channels) + " channels, expected 1 or 3");
  }
  const std::vector<std::uint8_t> file = InputFile(path).read(kMostFileBytes + 1);
  if (file.empty()) fail(path, "is empty, expected a PNG or JPEG image");
  if (file.size() > kMostFileBytes) fail(path, "is larger than " + std::to_string(kMostFileBytes) + " bytes");
  Pixels pixels;
  if (starts_with(file, "\x89PNG\r\n\x1a\n", 8)) {
    pixels = decode_png(path, file);
  } else if (starts_with(file, "\xff\xd8\xff", 3)) {
    pixels = decode_jpeg(path, file, channels == 1);
  } else {
    fail(path, "starts with " + first_bytes(file) + ", expected a PNG or JPEG image");
  }

  at::Tensor image = at::empty({channels, pixels.height, pixels.width}, at::kByte);
  std::uint8_t* out = image.mutable_data_ptr<std::uint8_t>();
  const std::int64_t plane = pixels.height * pixels.width, from = pixels.channels;
  const bool colour = from >= 3, alpha = from % 2 == 0;
  for (std::int64_t i = 0; i < plane; ++i) {
    const std::uint8_t* p = pixels.bytes.data() + i * from;
    int rgb[3] = {p[0], colour ? p[1] : p[0], colour ? p[2] : p[0]};
    if (alpha) {
      for (int& value : rgb) value = (value * p[from - 1] + 127) / 255;
    }
    if (channels == 1) {
      out[i] = luma(rgb[0], rgb[1], rgb[2]);
    } else {
      for (int c = 0; c < 3; ++c) out[c * plane + i] = static_cast<std::uint8_t>(rgb[c]);
    }
  }
  return image;
}

at::Tensor resize(const at::Tensor& image, std::int64_t height, std::int64_t width) {
  check_size(image, height, width);
  if (image.size(1) == height && image.size(2) == width) return image;
  const at::Tensor resized =
      at::_upsample_bilinear2d_aa(image.to(at::kFloat).unsqueeze(0), {height, width}, /*align_corners=*/false);
  return resized.squeeze(0).round_().clamp_(0, 255).to(at::kByte);
}

at::Tensor fit(const at::Tensor& image, std::int64_t height, std::int64_t width) {
  check_size(image, height, width);
  // Cut first: a very thin image would otherwise be blown up without bound.
  const double scale = std::max(static_cast<double>(height) / static_cast<double>(image.size(1)),
                                static_cast<double>(width) / static_cast<double>(image.size(2)));
  const auto seen = [&](std::int64_t wanted, std::int64_t has) {
    return std::clamp<std::int64_t>(std::llround(static_cast<double>(wanted) / scale), 1, has);
  };
  const std::int64_t rows = seen(height, image.size(1)), columns = seen(width, image.size(2));
  return resize(image.narrow(1, (image.size(1) - rows) / 2, rows).narrow(2, (image.size(2) - columns) / 2, columns),
                height, width)
      .contiguous();
}

std::vector<fs::path> list_images(const fs::path& dir, std::vector<fs::path>* others) {
  const auto hidden = [](const fs::path& path) { return path.filename().native().front() == '.'; };
  const auto is_image = [](const fs::path& path) {
    std::string extension = path.extension().string();
    for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
  };
  std::vector<fs::path> found;
  std::error_code error;
  // Links to folders are not followed by default: a loop ends the walk at its first step.
  fs::recursive_directory_iterator entry(dir, error), end;
  while (!error && entry != end) {
    std::error_code ignored;  // of an entry that vanished or dangles: no image
    if (hidden(entry->path())) {
      if (entry->is_directory(ignored)) entry.disable_recursion_pending();
    } else if (is_image(entry->path()) && entry->is_regular_file(ignored)) {
      found.push_back(entry->path());
    } else if (others != nullptr && !entry->is_directory(ignored)) {
      others->push_back(entry->path());
    }
    entry.increment(error);
  }
  if (error) fail(dir, "cannot be listed: " + error.message());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace axial::data
