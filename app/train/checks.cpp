#include "app/train/checks.h"

#include <algorithm>

#include <unistd.h>

#include "app/checkpoint/safetensors.h"
#include "app/config/load.h"
#include "app/run/run_error.h"
#include "app/train/summary.h"
#include "data/listing.h"
#include "model/elements.h"

namespace axial::app {

namespace {

std::string extent_text(std::int64_t height, std::int64_t width) {
  return std::to_string(height) + "x" + std::to_string(width);
}

std::string shape_text(std::int64_t channels, std::int64_t height, std::int64_t width, std::size_t classes) {
  return std::to_string(channels) + "x" + extent_text(height, width) + " images of " + std::to_string(classes) +
         " classes";
}

std::string differing_class(const std::vector<std::string>& found, const std::vector<std::string>& expected) {
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    if (found[i] != expected[i])
      return "class " + std::to_string(i) + " is " + found[i] + ", expected " + expected[i];
  }
  return {};
}

}  // namespace

void check_folder(const Config& config) {
  const std::string& dir = config.data.dir;
  if (dir.empty() && config.data.dataset == "image_folder") {
    throw ConfigError(
        "data.dir: expected the folder of your pictures (data.dir=FOLDER), with train/CLASS/ and test/CLASS/, or "
        "CLASS/, in it; image_folder has no other place to look");
  }
  if (dir.empty() || config.data.dataset == "synthetic" || config.data.dataset == "image_list") return;
  std::error_code error;
  if (std::filesystem::is_directory(dir, error)) return;
  throw data::DataError(
      "data.dir: " + dir + ": " + (std::filesystem::exists(dir, error) ? "is no folder" : "no such folder") +
      "; name the one that holds " + (config.data.dataset == "image_folder" ? "your pictures" : config.data.dataset) +
      " (data.dir=FOLDER)");
}

void check_batches(const Config& config, const data::Dataset& train) {
  const DataConfig& d = config.data;
  if (d.drop_last && train.size() < d.batch_size) {
    throw ConfigError("data.batch_size: no full batch of " + std::to_string(d.batch_size) + " comes out of " +
                      std::to_string(train.size()) +
                      " training images; lower data.batch_size or set data.drop_last=false");
  }
  const std::int64_t height = train.height(), width = train.width();
  if (config.augment.pad_crop > 0 && config.augment.pad_crop >= std::min(height, width)) {
    throw ConfigError("augment.pad_crop: " + std::to_string(config.augment.pad_crop) +
                      ", expected less than the shorter side of the images (" + extent_text(height, width) + ")");
  }
}

void check_memory(const Config& config, const data::Dataset& train, const data::Dataset& evaluated, double memory) {
  const auto check = [&](const char* key, std::int64_t batch, const data::Dataset& set) {
    const std::int64_t images = std::min(batch, set.size());
    const double bytes = 5.0 * static_cast<double>(images) * static_cast<double>(set.channels()) *
                         static_cast<double>(set.height()) * static_cast<double>(set.width());
    if (bytes <= memory) return;
    throw ConfigError(std::string(key) + ": a batch of " + std::to_string(images) + " images of " +
                      extent_text(set.height(), set.width()) + " takes " + size_text(bytes) +
                      ", and this machine has " + size_text(memory) + "; lower " + key + " or the images' size");
  };
  check("data.batch_size", config.data.batch_size, train);
  check("data.eval_batch_size", config.data.eval_batch_size, evaluated);
}

void check_model(const AxialClassifierOptions& options, double memory) {
  const double bytes = 2 * sizeof(float) * element_count(options);
  if (bytes <= memory) return;
  throw ConfigError("model.dim, model.depth: the parameters and their gradients take " + size_text(bytes) +
                    ", and this machine has " + size_text(memory) + "; make the model smaller");
}

double machine_memory() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

void check_output(const Config& config, const std::filesystem::path& run) {
  namespace fs = std::filesystem;
  std::error_code error;
  const DataConfig& d = config.data;
  // Beside train/ and test/ there is room for anything.
  if (d.dataset != "image_folder" || fs::exists(fs::path(d.dir) / "train", error)) return;
  const fs::path folder = fs::weakly_canonical(d.dir, error);
  const auto check = [&](const char* key, const fs::path& path) {
    // (absolute first: where not even its first folder exists a relative path would stay one)
    const fs::path whole = fs::weakly_canonical(fs::absolute(path, error), error),
                   inside = whole.lexically_relative(folder);
    if (inside.empty() || *inside.begin() == "..") return;
    throw ConfigError(std::string(key) + ": " + path.string() + " lies in data.dir (" + d.dir +
                      "), whose folders are the classes: it would become one; choose a folder outside");
  };
  check("-o or train.output", run);
  if (d.cache == "disk" && !d.cache_dir.empty()) check("data.cache_dir", d.cache_dir);
}

void check_replaced(const Config& config, const std::filesystem::path& run) {
  namespace fs = std::filesystem;
  if (config.train.init_from.empty()) return;
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(config.train.init_from, error), error),
                 inside = whole.lexically_relative(fs::weakly_canonical(fs::absolute(run, error), error));
  if (inside.empty() || *inside.begin() == "..") return;
  throw ConfigError("train.init_from: " + config.train.init_from +
                    " lies in the run that --overwrite replaces; choose another folder for the new one");
}

void check_result(const OutputFile& file, const Config& config) {
  namespace fs = std::filesystem;
  std::error_code error;
  const DataConfig& d = config.data;
  file.keep({d.train_list, d.test_list});
  if (d.dataset == "image_folder") {
    const fs::path folder = fs::weakly_canonical(d.dir, error), inside = file.path().lexically_relative(folder);
    const std::string first = inside.empty() ? ".." : inside.begin()->string();
    const bool parts = fs::exists(folder / "train", error);  // else each folder is a class
    if (first == ".." || inside == inside.filename()) return;
    if (parts && first != "train" && first != "test" && first != "val") return;
    throw RunError(file.path().string() + ": lies among the pictures of data.dir (" + d.dir +
                   "); choose a file outside");
  }
  if (!fs::exists(file.path(), error)) return;
  for (const std::string& list : {d.train_list, d.test_list}) {
    if (list.empty()) continue;
    std::vector<fs::path> pictures;
    try {
      for (const data::Listed& image : data::read_list(list, d.list_outside).images)
        pictures.emplace_back(image.path);
    } catch (const data::DataError&) {  // said by who reads the set
      continue;
    }
    file.keep(pictures);
  }
}

void check_images(const data::Dataset& set, const ImageSpec& spec) {
  const std::string found = shape_text(set.channels(), set.height(), set.width(), set.classes.size());
  const std::string expected = shape_text(spec.channels, spec.height, spec.width, spec.classes.size());
  if (found != expected) throw data::DataError(set.name + ": " + found + ", but the model is trained on " + expected);
  if (const std::string other = differing_class(set.classes, spec.classes); !other.empty()) {
    throw data::DataError(set.name + ": other classes than the model is trained on: " + other);
  }
}

void check_same_data(const ImageSpec& before, const ImageSpec& now, const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError(path.string() + ": the run was trained on other images: " + what +
                          "; point data.dir at its own, or start a new run");
  };
  const std::string found = shape_text(now.channels, now.height, now.width, now.classes.size());
  const std::string expected = shape_text(before.channels, before.height, before.width, before.classes.size());
  if (found != expected) refuse("found " + found + ", expected " + expected);
  if (const std::string other = differing_class(now.classes, before.classes); !other.empty()) refuse(other);
  if (before.train_images == 0) return;  // a checkpoint from before this was written down
  if (before.train_images != now.train_images) {
    refuse("found " + std::to_string(now.train_images) + " training images, expected " +
           std::to_string(before.train_images));
  }
  if (before.label_checksum != now.label_checksum) refuse("their labels differ");
}

void check_norm(const Config& config, std::pair<std::int64_t, std::int64_t> grid, std::int64_t train_images) {
  const ModelConfig& m = config.model;
  const auto [rows, columns] = grid;
  if (m.stem != "conv" || m.stem_norm != "batch" || rows * columns > 1) return;
  const std::int64_t size = config.data.batch_size, rest = config.data.drop_last ? 0 : train_images % size;
  if (size > 1 && rest != 1) return;
  throw ConfigError(
      std::string("model.stem_norm: batch normalisation over one value, since the stem leaves 1x1 tokens and ") +
      (size == 1 ? "data.batch_size is 1" : "the last batch holds 1 image") +
      "; set model.stem_norm=none, a smaller model.stem_stride or another data.batch_size");
}

}  // namespace axial::app
