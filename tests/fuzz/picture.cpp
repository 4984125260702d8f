// PNG and JPEG files of any content, cut and resized in every way that training knows.
#include "data/picture.h"
#include "data/error.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace axial;
  // From the end: a file's first bytes stay the file's.
  const auto option = [&](std::size_t i) { return std::size_t{size > i ? data[size - 1 - i] : std::uint8_t{0}}; };
  data::PictureOptions options;
  options.channels = option(0) % 2 == 0 ? 3 : 1;
  options.height = static_cast<std::int64_t>(1 + option(1) % 40);
  options.width = static_cast<std::int64_t>(1 + option(2) % 40);
  options.crop_mode = static_cast<data::CropMode>(option(3) % 3);
  options.crop_pct = static_cast<double>(1 + option(4)) / 256;
  const data::RandomCrop crop{option(5), option(6), {0.08, 1}, {0.75, 4.0 / 3}};
  const fuzz::MemoryFile file(data, size);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(options.bytes()));
  try {
    data::read_picture(file.path(), options, option(0) % 4 < 2 ? nullptr : &crop, out.data());
  } catch (const data::DataError& error) {
    fuzz::one_line(error);
  }
  return 0;
}
