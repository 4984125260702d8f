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
  if (png_get_color_type(reader.png, reader.info) == PNG_COLOR_TYPE_PALETTE) {
    png_set_packing(reader.png);  // an index a byte; `coloured` makes colours of them
  } else {
    png_set_expand(reader.png);  // 1 to 4 bits to 8, transparent colour to alpha
  }
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

// Colours of a palette's indices. libpng's own expanding takes an index past the palette's end for black.
Pixels coloured(const std::filesystem::path& path, const Reader& reader) {
  png_colorp colours = nullptr;
  png_bytep opacity = nullptr;
  int count = 0, transparent = 0;
  png_get_PLTE(reader.png, reader.info, &colours, &count);
  png_get_tRNS(reader.png, reader.info, &opacity, &transparent, nullptr);
  const Pixels& indices = reader.pixels;
  Pixels pixels;
  pixels.height = indices.height;
  pixels.width = indices.width;
  pixels.channels = transparent > 0 ? 4 : 3;
  pixels.allocate();
  std::uint8_t* out = pixels.bytes.data();
  const std::uint8_t* end = indices.bytes.data() + indices.height * indices.width;
  for (const std::uint8_t* index = indices.bytes.data(); index != end; ++index) {
    if (*index >= count) {
      fail(path, "damaged PNG (a pixel of colour " + std::to_string(*index) + ", in its palette are " +
                     std::to_string(count) + ", from 0)");
    }
    const png_color& colour = colours[*index];
    *out++ = colour.red;
    *out++ = colour.green;
    *out++ = colour.blue;
    if (transparent > 0) *out++ = *index < transparent ? opacity[*index] : 255;
  }
  return pixels;
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
  const bool palette = png_get_color_type(reader.png, reader.info) == PNG_COLOR_TYPE_PALETTE;
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
  if (palette) return coloured(path, reader);
  return std::move(reader.pixels);
}

}  // namespace axial::data
