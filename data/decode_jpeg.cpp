#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jpeglib.h>  // needs <cstdio> before it

#include <jerror.h>

#include "data/decode.h"
#include "data/exif.h"
#include "data/files.h"

namespace axial::data {
namespace {

// A progressive file may repeat its scans without end, each one as costly as an image.
constexpr int kMostScans = 500;
constexpr std::int64_t kMostPixelsPerByte = 512;  // a block of 64 takes at least one bit, that of its mean value

// libjpeg reports errors by a callback that must not return. Everything that outlives a jump is in here,
// and the functions that are jumped out of hold nothing with a destructor.
struct Reader {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = "";
  Pixels pixels;

  ~Reader() { jpeg_destroy_decompress(&jpeg); }  // harmless where creation did not get far
};

[[noreturn]] void on_error(j_common_ptr jpeg) {
  Reader& reader = *static_cast<Reader*>(jpeg->client_data);
  jpeg->err->format_message(jpeg, reader.message);
  longjmp(reader.jump, 1);
}

// Where data is missing or damaged libjpeg only warns and invents gray pixels: an error here.
void on_message(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  const int code = jpeg->err->msg_code;
  if (code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR) return;
  on_error(jpeg);
}

void on_progress(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMostScans) return;
  Reader& reader = *static_cast<Reader*>(jpeg->client_data);
  std::snprintf(reader.message, sizeof reader.message, "more than %d scans", kMostScans);
  longjmp(reader.jump, 1);
}

bool read_header(Reader& reader, const std::uint8_t* data, std::size_t size) {
  if (setjmp(reader.jump)) return false;
  jpeg_create_decompress(&reader.jpeg);
  reader.jpeg.progress = &reader.progress;
  jpeg_save_markers(&reader.jpeg, JPEG_APP0 + 1, 0xffff);  // Exif's, whole
  jpeg_mem_src(&reader.jpeg, data, static_cast<unsigned long>(size));
  jpeg_read_header(&reader.jpeg, TRUE);
  return true;
}

bool start(Reader& reader) {
  if (setjmp(reader.jump)) return false;
  jpeg_start_decompress(&reader.jpeg);
  return true;
}

// Columns that nobody wants are not transformed; a picture's right or left part is half its time. The colours of a
// pixel depend on its neighbours', so that a few more stay on both sides.
bool leave_out(Reader& reader, const Enough& enough) {
  constexpr std::int64_t kNeighbours = 8;
  if (setjmp(reader.jump)) return false;
  const std::int64_t width = reader.jpeg.output_width;
  const std::int64_t begin = std::max<std::int64_t>(0, enough.begin / enough.reduction - kNeighbours);
  const std::int64_t end = std::min(width, enough.end / enough.reduction + 1 + kNeighbours);
  if (10 * (end - begin) > 9 * width) return true;
  JDIMENSION left = static_cast<JDIMENSION>(begin), columns = static_cast<JDIMENSION>(end - begin);
  jpeg_crop_scanline(&reader.jpeg, &left, &columns);
  reader.pixels.left = left;
  return true;
}

// rows of `stride` bytes from `out` on
bool read_pixels(Reader& reader, std::uint8_t* out, std::size_t stride) {
  if (setjmp(reader.jump)) return false;
  while (reader.jpeg.output_scanline < reader.jpeg.output_height) {
    JSAMPROW row = out + reader.jpeg.output_scanline * stride;
    jpeg_read_scanlines(&reader.jpeg, &row, 1);
  }
  jpeg_finish_decompress(&reader.jpeg);
  return true;
}

// Of the first marker that says one.
int orientation_of(const jpeg_decompress_struct& jpeg) {
  for (const jpeg_marker_struct* marker = jpeg.marker_list; marker != nullptr; marker = marker->next) {
    const int orientation = exif_orientation(marker->data, marker->data_length);
    if (orientation != 1) return orientation;
  }
  return 1;
}

// CMYK to RGB in place. Adobe's files hold 255 minus the ink, others the ink.
void cmyk_to_rgb(Pixels& pixels, bool inverted) {
  std::uint8_t* const bytes = pixels.bytes.data();
  const std::size_t count = static_cast<std::size_t>(pixels.height * pixels.width);
  for (std::size_t i = 0; i < count; ++i) {
    int paper[4];
    for (std::size_t c = 0; c < 4; ++c) paper[c] = inverted ? bytes[4 * i + c] : 255 - bytes[4 * i + c];
    for (std::size_t c = 0; c < 3; ++c) {
      bytes[3 * i + c] = static_cast<std::uint8_t>((paper[c] * paper[3] + 127) / 255);
    }
  }
  pixels.channels = 3;
}

}  // namespace

Pixels decode_jpeg(const std::filesystem::path& path, const std::vector<std::uint8_t>& file, bool gray,
                   const Choose& choose) {
  Reader reader;
  jpeg_decompress_struct& jpeg = reader.jpeg;
  jpeg.err = jpeg_std_error(&reader.errors);
  jpeg.client_data = &reader;
  reader.errors.error_exit = on_error;
  reader.errors.emit_message = on_message;
  reader.progress.progress_monitor = on_progress;
  const auto damaged = [&] { fail(path, "damaged JPEG (" + std::string(reader.message) + ")"); };
  if (!read_header(reader, file.data(), file.size())) damaged();

  const int orientation = orientation_of(jpeg);  // markers are gone when decoding is done
  Pixels& pixels = reader.pixels;
  pixels.height = jpeg.image_height;
  pixels.width = jpeg.image_width;
  if (pixels.height * pixels.width > kMostPixels) {
    fail(path, "JPEG of " + std::to_string(pixels.width) + " x " + std::to_string(pixels.height) +
                   " pixels, expected at most " + std::to_string(kMostPixels));
  }
  if (pixels.height * pixels.width > kMostPixelsPerByte * static_cast<std::int64_t>(file.size())) {
    fail(path, "JPEG promises " + std::to_string(pixels.width) + " x " + std::to_string(pixels.height) +
                   " pixels, more than its " + std::to_string(file.size()) + " bytes can hold");
  }
  const J_COLOR_SPACE stored = jpeg.jpeg_color_space;
  const bool cmyk = stored == JCS_CMYK || stored == JCS_YCCK;
  if (cmyk) {
    jpeg.out_color_space = JCS_CMYK;
  } else if (stored == JCS_GRAYSCALE || (gray && stored == JCS_YCbCr)) {
    jpeg.out_color_space = JCS_GRAYSCALE;
  } else if (stored == JCS_YCbCr || stored == JCS_RGB) {
    jpeg.out_color_space = JCS_RGB;
  } else {
    fail(path, "JPEG of " + std::to_string(jpeg.num_components) + " unknown components, expected gray, RGB or CMYK");
  }
  Enough enough;
  if (choose) {
    const bool turned = orientation >= 5;
    enough = choose(turned ? pixels.width : pixels.height, turned ? pixels.height : pixels.width);
    jpeg.scale_denom = static_cast<unsigned>(enough.reduction);
  }
  if (!start(reader)) damaged();
  if (orientation == 1 && enough.end > 0 && !leave_out(reader, enough)) damaged();
  pixels.height = jpeg.output_height;
  pixels.width = jpeg.output_width;
  pixels.channels = jpeg.output_components;
  const std::size_t stride = static_cast<std::size_t>(pixels.width * pixels.channels);
  pixels.allocate();
  if (!read_pixels(reader, pixels.bytes.data(), stride)) damaged();
  if (cmyk) cmyk_to_rgb(pixels, jpeg.saw_Adobe_marker);
  return upright(std::move(reader.pixels), orientation);
}

}  // namespace axial::data
