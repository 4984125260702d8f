// CIFAR's binary version: each record is its label bytes (CIFAR-100: coarse, then fine) and 3 x 32 x 32
// pixels, plane by plane, with nothing before or between the records.
#include <cstring>

#include <ATen/ops/empty.h>

#include "data/files.h"
#include "data/readers.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kPixels = std::uint64_t{3} * 32 * 32;
constexpr std::uint64_t kMostRecords = 1'000'000;  // of one file, twenty times what is published
constexpr int kCoarseClasses = 20;

std::vector<std::string> with_gz(const std::string& name) { return {name, name + ".gz"}; }

std::vector<std::string> cifar10_files(Split split) {
  if (split == Split::kTest) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
}

std::vector<std::string> cifar100_files(Split split) { return {split == Split::kTest ? "test.bin" : "train.bin"}; }

Dataset read_records(const Source& source, const fs::path& dir, const std::vector<std::string>& files,
                     std::uint64_t label_bytes) {
  const std::uint64_t record = label_bytes + kPixels;
  std::vector<std::vector<std::uint8_t>> parts;
  std::uint64_t count = 0;
  for (const std::string& name : files) {
    const fs::path path = find_file(dir, with_gz(name));
    if (path.empty()) fail(dir / name, "no such file (nor " + name + ".gz)");
    InputFile file(path);
    std::vector<std::uint8_t> bytes = file.read(kMostRecords * record + 1);
    if (bytes.size() > kMostRecords * record) {
      fail(path, "holds more than " + std::to_string(kMostRecords) + " records, expected at most that");
    }
    if (bytes.empty() || bytes.size() % record != 0) {
      fail(path, "holds " + std::to_string(bytes.size()) + " bytes, expected a multiple of " +
                     std::to_string(record) + " (records of " + std::to_string(label_bytes) + " label bytes and " +
                     std::to_string(kPixels) + " pixels)");
    }
    for (std::uint64_t i = 0; i < bytes.size() / record; ++i) {
      const std::uint8_t* labels = bytes.data() + i * record;
      const int label = labels[label_bytes - 1], classes = static_cast<int>(source.classes.size());
      if (label >= classes) {
        fail(path, "label " + std::to_string(label) + " at index " + std::to_string(i) + ", expected 0 to " +
                       std::to_string(classes - 1));
      }
      // A record that starts at the wrong byte shows here as well.
      if (label_bytes == 2 && labels[0] >= kCoarseClasses) {
        fail(path, "coarse label " + std::to_string(labels[0]) + " at index " + std::to_string(i) +
                       ", expected 0 to " + std::to_string(kCoarseClasses - 1));
      }
    }
    count += bytes.size() / record;
    parts.push_back(std::move(bytes));
  }
  Dataset set;
  set.images = at::empty({static_cast<std::int64_t>(count), 3, 32, 32}, at::kByte);
  set.labels = at::empty({static_cast<std::int64_t>(count)}, at::kLong);
  std::uint8_t* pixels = set.images.mutable_data_ptr<std::uint8_t>();
  std::int64_t* labels = set.labels.mutable_data_ptr<std::int64_t>();
  for (const auto& bytes : parts) {
    for (std::uint64_t at = 0; at < bytes.size(); at += record) {
      *labels++ = bytes[at + label_bytes - 1];
      std::memcpy(pixels, bytes.data() + at + label_bytes, kPixels);
      pixels += kPixels;
    }
  }
  return set;
}

}  // namespace

std::vector<std::string> cifar10_first_file(Split split) { return with_gz(cifar10_files(split)[0]); }

Dataset read_cifar10(const Source& source, const fs::path& dir, Split split) {
  return read_records(source, dir, cifar10_files(split), 1);
}

std::vector<std::string> cifar100_first_file(Split split) { return with_gz(cifar100_files(split)[0]); }

Dataset read_cifar100(const Source& source, const fs::path& dir, Split split) {
  return read_records(source, dir, cifar100_files(split), 2);
}

}  // namespace axial::data
