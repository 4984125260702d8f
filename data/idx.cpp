// IDX, the format of MNIST: 0 0 type rank, then `rank` big-endian 32-bit sizes, then the elements.
#include <cstdio>
#include <cstring>

#include <ATen/ops/empty.h>

#include "data/files.h"
#include "data/readers.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

constexpr std::uint8_t kUnsignedByte = 8;

std::uint32_t big_endian(const std::uint8_t* p) {
  return std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | std::uint32_t{p[3]};
}

struct IdxArray {
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> values;
};

IdxArray read_idx(const fs::path& path, std::size_t rank) {
  InputFile file(path);
  const std::vector<std::uint8_t> header = file.read(4 + 4 * rank);
  if (header.size() < 4 + 4 * rank) {
    fail(path, "holds " + std::to_string(header.size()) + " bytes, expected an IDX header of " +
                   std::to_string(4 + 4 * rank));
  }
  const std::uint32_t expected = std::uint32_t{kUnsignedByte} << 8 | static_cast<std::uint32_t>(rank);
  if (const std::uint32_t magic = big_endian(header.data()); magic != expected) {
    char text[96];
    std::snprintf(text, sizeof text, "starts with %08x, expected %08x (IDX, unsigned bytes, %zu dimension%s)", magic,
                  expected, rank, rank == 1 ? "" : "s");
    fail(path, text);
  }

  IdxArray array;
  std::string promise;
  std::uint64_t total = 1;
  bool overflow = false;
  for (std::size_t i = 0; i < rank; ++i) {
    const std::uint64_t size = big_endian(header.data() + 4 + 4 * i);
    array.sizes.push_back(static_cast<std::int64_t>(size));
    promise += (i ? " x " : "header promises ") + std::to_string(size);
    overflow = overflow || __builtin_mul_overflow(total, size, &total);
  }
  promise += overflow ? " bytes" : " = " + std::to_string(total) + " bytes";
  for (const std::int64_t size : array.sizes) {
    if (size == 0) fail(path, promise + ", expected no size to be 0");
  }
  if (overflow || total > file.capacity()) {
    fail(path, promise + ", the file holds at most " + std::to_string(file.capacity()));
  }
  array.values = file.read(total);
  if (array.values.size() < total) {
    fail(path, promise + ", the file holds " + std::to_string(array.values.size()));
  }
  if (!file.at_end()) fail(path, promise + ", the file holds more");
  return array;
}

// The published names, and the one with a dot that some archives unpack to.
std::vector<std::string> names(Split split, const std::string& what, const std::string& kind) {
  const std::string stem = (split == Split::kTrain ? "train-" : "t10k-") + what;
  return {stem + "-" + kind, stem + "-" + kind + ".gz", stem + "." + kind, stem + "." + kind + ".gz"};
}

}  // namespace

std::vector<std::string> idx_image_files(Split split) { return names(split, "images", "idx3-ubyte"); }

Dataset read_idx_set(const Source& source, const fs::path& dir, Split split) {
  const fs::path image_file = find_file(dir, idx_image_files(split));
  const std::vector<std::string> label_names = names(split, "labels", "idx1-ubyte");
  const fs::path label_file = find_file(dir, label_names);
  if (label_file.empty()) fail(dir / label_names[0], "no such file (nor " + label_names[1] + ")");

  const IdxArray labels = read_idx(label_file, 1);  // the small one first
  const IdxArray images = read_idx(image_file, 3);
  if (images.sizes[0] != labels.sizes[0]) {
    fail(image_file, "holds " + std::to_string(images.sizes[0]) + " images, but " + label_file.string() + " holds " +
                         std::to_string(labels.sizes[0]) + " labels");
  }
  const std::int64_t count = labels.sizes[0];
  Dataset set;
  set.labels = at::empty({count}, at::kLong);
  std::int64_t* out = set.labels.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = labels.values[static_cast<std::size_t>(i)];
    if (out[i] >= static_cast<std::int64_t>(source.classes.size())) {
      fail(label_file, "label " + std::to_string(out[i]) + " at index " + std::to_string(i) + ", expected 0 to " +
                           std::to_string(source.classes.size() - 1));
    }
  }
  set.images = at::empty({count, 1, images.sizes[1], images.sizes[2]}, at::kByte);
  std::memcpy(set.images.mutable_data_ptr<std::uint8_t>(), images.values.data(), images.values.size());
  return set;
}

}  // namespace axial::data
