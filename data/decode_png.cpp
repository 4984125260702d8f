#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <png.h>

#include "data/decode.h"
#include "data/files.h"

namespace axial::data {
namespace {

constexpr std::uint64_t kDeflateRatio = 1032;  // the most that one byte of deflate expands to

// libpng reports errors by longjmp. Everything that outlives a jump is in here, and the functions that are
// jumped out of hold nothing with a destructor.
struct Reader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const std::uint8_t* data = nullptr;
  std::size_t size = 0, at = 0;
  char message[160] = "";
  Pixels pixels;
  std::vector<png_bytep> rows;

  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  Reader& reader = *static_cast<Reader*>(png_get_error_ptr(png));
  std::snprintf(reader.message, sizeof reader.message, "%s", message);
  longjmp(png_jmpbuf(png), 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep out, std::size_t count) {
  Reader& reader = *static_cast<Reader*>(png_get_io_ptr(png));
  if (count > reader.size - reader.at) png_error(png, "the file ends early");
  std::memcpy(out, reader.data + reader.at, count);
  reader.at += count;
}

bool read_header(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_set_read_fn(reader.png, &reader, on_read);
  png_read_info(reader.png, reader.info);
  return true;
}

bool prepare(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_set_expand(reader.png);    // palette to RGB, 1 to 4 bits to 8, transparent colour to alpha
  png_set_scale_16(reader.png);  // 16 bits to 8, rounded
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

bool read_pixels(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_read_image(reader.png, reader.rows.data());
  png_read_end(reader.png, nullptr);  // a file cut after its last pixel is cut all the same
  return true;
}

}  // namespace

Pixels decode_png(const std::filesystem::path& path, const std::vector<std::uint8_t>& file) {
  Reader reader;
  reader.data = file.data();
  reader.size = file.size();
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
  reader.info = reader.png ? png_create_info_struct(reader.png) : nullptr;
  if (!reader.info) fail(path, "libpng cannot start (" + std::string(reader.message) + ")");
  const auto damaged = [&] { fail(path, "damaged PNG (" + std::string(reader.message) + ")"); };
  if (!read_header(reader)) damaged();

  const std::uint64_t height = png_get_image_height(reader.png, reader.info);
  const std::uint64_t width = png_get_image_width(reader.png, reader.info);
  const std::string shape = std::to_string(width) + " x " + std::to_string(height);
  if (height * width > static_cast<std::uint64_t>(kMostPixels)) {
    fail(path, "PNG of " + shape + " pixels, expected at most " + std::to_string(kMostPixels));
  }
  if (png_get_rowbytes(reader.png, reader.info) * height > kDeflateRatio * file.size()) {
    fail(path, "PNG promises " + shape + " pixels, more than its " + std::to_string(file.size()) + " bytes can hold");
  }
  if (!prepare(reader)) damaged();
  Pixels& pixels = reader.pixels;
  pixels.height = static_cast<std::int64_t>(height);
  pixels.width = static_cast<std::int64_t>(width);
  pixels.channels = png_get_channels(reader.png, reader.info);
  const std::size_t row = png_get_rowbytes(reader.png, reader.info);
  if (row != static_cast<std::size_t>(pixels.width * pixels.channels)) fail(path, "PNG of an unknown pixel format");
  pixels.allocate();
  for (std::uint64_t y = 0; y < height; ++y) reader.rows.push_back(pixels.bytes.data() + y * row);
  if (!read_pixels(reader)) damaged();
  return std::move(reader.pixels);
}

}  // namespace axial::data
