// PNG and JPEG files of every kind, written by libpng and libjpeg.
#pragma once

#include <array>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include <jpeglib.h>  // needs <cstdio> before it
#include <png.h>

#include "support.h"

namespace axial::data::test {

struct PngKind {
  int width = 1, height = 1, depth = 8, type = PNG_COLOR_TYPE_RGB;
  bool interlaced = false;
  int transparent_gray = -1;
  std::vector<std::array<std::uint8_t, 3>> palette = {};
  std::vector<std::uint8_t> palette_alpha = {};  // of its first colours
};

// `bytes`: rows as PNG packs them, without gaps.
inline void write_png(const std::filesystem::path& path, const PngKind& kind, const Bytes& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file) throw std::runtime_error("cannot write " + path.string());
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, file);
  png_set_IHDR(png, info, static_cast<png_uint_32>(kind.width), static_cast<png_uint_32>(kind.height), kind.depth,
               kind.type, kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> palette;
  for (const auto& [r, g, b] : kind.palette) palette.push_back({r, g, b});
  if (!palette.empty()) png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  if (!kind.palette_alpha.empty()) {
    png_set_tRNS(png, info, kind.palette_alpha.data(), static_cast<int>(kind.palette_alpha.size()), nullptr);
  }
  png_set_check_for_invalid_index(png, 0);  // written all the same
  if (kind.transparent_gray >= 0) {
    png_color_16 colour{};
    colour.gray = static_cast<png_uint_16>(kind.transparent_gray);
    png_set_tRNS(png, info, nullptr, 0, &colour);
  }
  png_write_info(png, info);
  const std::size_t row = png_get_rowbytes(png, info);
  Bytes copy = bytes;
  copy.resize(row * static_cast<std::size_t>(kind.height));
  std::vector<png_bytep> rows;
  for (int y = 0; y < kind.height; ++y) rows.push_back(copy.data() + static_cast<std::size_t>(y) * row);
  png_write_image(png, rows.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  std::fclose(file);
}

struct JpegKind {
  int width = 1, height = 1, components = 3;
  bool progressive = false;
  J_COLOR_SPACE space = JCS_UNKNOWN;  // stored; unknown: libjpeg's choice
  bool adobe_marker = true;           // of CMYK
  std::vector<std::uint8_t> app1 = {};  // content of an APP1 marker (Exif); empty: none
};

// `bytes`: gray, RGB or CMYK, pixel by pixel.
inline void write_jpeg(const std::filesystem::path& path, const JpegKind& kind, const Bytes& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file) throw std::runtime_error("cannot write " + path.string());
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  jpeg_stdio_dest(&jpeg, file);
  jpeg.image_width = static_cast<JDIMENSION>(kind.width);
  jpeg.image_height = static_cast<JDIMENSION>(kind.height);
  jpeg.input_components = kind.components;
  jpeg.in_color_space = kind.components == 1 ? JCS_GRAYSCALE : kind.components == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  if (kind.space != JCS_UNKNOWN) jpeg_set_colorspace(&jpeg, kind.space);
  if (!kind.adobe_marker) jpeg.write_Adobe_marker = FALSE;
  jpeg_set_quality(&jpeg, 97, TRUE);
  if (kind.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  if (!kind.app1.empty()) {
    jpeg_write_marker(&jpeg, JPEG_APP0 + 1, kind.app1.data(), static_cast<unsigned>(kind.app1.size()));
  }
  Bytes copy = bytes;
  const std::size_t row = static_cast<std::size_t>(kind.width) * static_cast<std::size_t>(kind.components);
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW line = copy.data() + jpeg.next_scanline * row;
    jpeg_write_scanlines(&jpeg, &line, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::fclose(file);
}

}  // namespace axial::data::test
