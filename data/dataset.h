// Image sets: in memory, or files that are decoded when they are asked for; and where they are read from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/error.h"
#include "data/picture.h"

namespace axial::data {

struct Dataset {
  std::string name;                  // "fashion_mnist"
  at::Tensor images;  // uint8 [N, channels, H, W], contiguous; undefined where `pictures` stands for them
  std::shared_ptr<const Pictures> pictures;  // N files, not decoded yet; null: `images` holds all
  std::int64_t cache_bytes = 0;              // of `pictures`: memory that decoded ones may take
  at::Tensor labels;                 // int64 [N], each in [0, classes)
  std::vector<std::string> classes;  // class names, by label
  std::vector<double> mean, std;     // per channel, of pixels scaled to [0, 1]
  std::vector<std::string> notes;    // what the user should know of the files that were read, a line each
  std::int64_t size() const { return labels.defined() ? labels.size(0) : 0; }
  std::int64_t channels() const { return pictures ? pictures->options.channels : images.size(1); }
  std::int64_t height() const { return pictures ? pictures->options.height : images.size(2); }
  std::int64_t width() const { return pictures ? pictures->options.width : images.size(3); }
  std::int64_t bytes() const { return size() * channels() * height() * width(); }  // decoded
};

enum class Split { kTrain, kTest };

struct SyntheticOptions {
  std::int64_t train_size = 2048, test_size = 512;
  std::int64_t channels = 1, height = 28, width = 28, classes = 10;
  std::uint64_t seed = 0;
};

struct FolderOptions {
  PictureOptions picture = {};
  double test_fraction = 0.2;  // of each class, where the set comes without a test part
  // image_list. test_list empty: a part of the training list.
  std::filesystem::path train_list = {}, test_list = {};
  bool list_outside = false;  // their paths may be absolute or leave the list's folder
  // A trained model's, in its order: the training part is not looked at. Empty: those of the training part.
  std::vector<std::string> classes = {};
};

struct DatasetOptions {
  std::string name;           // one of dataset_names()
  std::filesystem::path dir;  // empty: the places of default_dirs(name) are tried
  SyntheticOptions synthetic = {};
  FolderOptions folder = {};
};

// fashion_mnist, mnist, cifar10, cifar100, image_folder (train/CLASS/..., test/CLASS/... or CLASS/... in dir),
// image_list, synthetic
const std::vector<std::string>& dataset_names();
std::vector<std::filesystem::path> default_dirs(const std::string& name);

// Reads one split and checks all of it (sizes, counts, label range) before it returns. Throws DataError. Image files
// are listed and not decoded: `pictures`.
Dataset load(const DatasetOptions& options, Split split);

// Decodes all pictures of a set, by so many threads (0: one for each core), which afterwards is in memory. Throws the
// DataError of the first bad file, whichever thread met it.
void decode(Dataset& set, std::int64_t workers);

// Image i, uint8 [channels, H, W], wherever it is.
at::Tensor image_of(const Dataset& set, std::int64_t i);

// The samples at `index`, int64 [n] on the CPU, in that order.
Dataset subset(const Dataset& set, const at::Tensor& index);

}  // namespace axial::data
