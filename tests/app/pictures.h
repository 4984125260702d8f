// Sets of pictures for tests that run the program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <png.h>

namespace axial::test {

// An RGB picture: `left` in its left half, `right` in the other.
inline void write_picture(const std::filesystem::path& path, int width, int height, int left, int right) {
  std::filesystem::create_directories(path.parent_path());
  std::vector<unsigned char> pixels;
  for (int i = 0; i < width * height; ++i) {
    pixels.insert(pixels.end(), 3, static_cast<unsigned char>(i % width < width / 2 ? left : right));
  }
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  if (!png_image_write_to_file(&image, path.c_str(), 0, pixels.data(), 0, nullptr)) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

// train/CLASS and test/CLASS: `count` square pictures a class for training, two for testing.
inline void write_picture_set(const std::filesystem::path& folder, const std::vector<std::string>& classes,
                              int count) {
  for (std::size_t c = 0; c < classes.size(); ++c) {
    for (int i = 0; i < count + 2; ++i) {
      const char* split = i < count ? "train" : "test";
      write_picture(folder / split / classes[c] / (std::to_string(i) + ".png"), 16, 16, static_cast<int>(c) * 120 + i,
                    255 - 20 * i);
    }
  }
}

// IDX files of MNIST's names: `count` images of side x side, black.
inline void write_idx_split(const std::filesystem::path& folder, const std::string& stem, std::uint8_t count,
                            std::uint8_t side) {
  std::filesystem::create_directories(folder);
  const auto number = [](std::uint8_t value) { return std::string(3, '\0') + static_cast<char>(value); };
  std::ofstream images(folder / (stem + "-images-idx3-ubyte"), std::ios::binary);
  images << std::string("\0\0\x08\x03", 4) << number(count) << number(side) << number(side)
         << std::string(static_cast<std::size_t>(count) * side * side, '\0');
  std::ofstream labels(folder / (stem + "-labels-idx1-ubyte"), std::ios::binary);
  labels << std::string("\0\0\x08\x01", 4) << number(count) << std::string(count, '\x01');
}

}  // namespace axial::test
