// Image sets that stay in memory, and where they are read from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace axial::data {

// A file or folder that is not what it should be: the message names path, what was found and what was
// expected, in one line.
struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Dataset {
  std::string name;                  // "fashion_mnist"
  at::Tensor images;                 // uint8 [N, channels, H, W], contiguous
  at::Tensor labels;                 // int64 [N], each in [0, classes)
  std::vector<std::string> classes;  // class names, by label
  std::vector<double> mean, std;     // per channel, of pixels scaled to [0, 1]
  std::vector<std::string> notes;    // what the user should know of the files that were read, a line each
  std::int64_t size() const { return images.defined() ? images.size(0) : 0; }
};

enum class Split { kTrain, kTest };

struct SyntheticOptions {
  std::int64_t train_size = 2048, test_size = 512;
  std::int64_t channels = 1, height = 28, width = 28, classes = 10;
  std::uint64_t seed = 0;
};

struct FolderOptions {
  std::int64_t channels = 3, height = 32, width = 32;  // every image is brought to this
};

struct DatasetOptions {
  std::string name;           // one of dataset_names()
  std::filesystem::path dir;  // empty: the places of default_dirs(name) are tried
  SyntheticOptions synthetic = {};
  FolderOptions folder = {};
};

// fashion_mnist, mnist, cifar10, cifar100, image_folder (train/CLASS/..., test/CLASS/... in dir), synthetic
const std::vector<std::string>& dataset_names();
std::vector<std::filesystem::path> default_dirs(const std::string& name);

// Reads one split and checks all of it (sizes, counts, label range) before it returns. Throws DataError.
Dataset load(const DatasetOptions& options, Split split);

}  // namespace axial::data
