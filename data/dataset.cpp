#include "data/dataset.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/ops/empty.h>

#include "data/files.h"
#include "data/loader.h"
#include "data/readers.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

const Source* find_source(const std::string& name) {
  const auto& all = sources();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Source& s) { return s.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

// The folder that holds the split's first file: one of `given`, or a known subfolder of one.
fs::path find_folder(const Source& source, const std::vector<fs::path>& given, Split split) {
  const std::vector<std::string> names = source.first_file(split);
  std::vector<std::string> looked;
  for (const fs::path& dir : given) {
    std::vector<fs::path> candidates{dir};
    for (const std::string& sub : source.subfolders) candidates.push_back(dir / sub);
    for (const fs::path& candidate : candidates) {
      if (!find_file(candidate, names).empty()) return candidate;
    }
    std::error_code error;
    const bool is_folder = fs::is_directory(dir, error);
    looked.push_back(dir.string() + (is_folder ? "" : fs::exists(dir, error) ? " (no folder)" : " (absent)"));
  }
  throw DataError(source.name + ": no " + names[0] + "[.gz] in " + joined(looked) + "; " + source.files);
}

}  // namespace

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Source& source : sources()) all.push_back(source.name);
    all.push_back("image_folder");
    all.push_back("image_list");
    all.push_back("synthetic");
    return all;
  }();
  return names;
}

std::vector<fs::path> default_dirs(const std::string& name) {
  const Source* source = find_source(name);
  if (!source) return {};
  const auto env = [](const char* variable) {
    const char* value = std::getenv(variable);
    return fs::path(value ? value : "");
  };
  std::vector<fs::path> dirs;
  if (const fs::path root = env("AXIAL_DATA"); !root.empty()) dirs.push_back(root / name);
  dirs.push_back(fs::path("datasets") / name);
  // XDG's rule: a relative value is ignored.
  fs::path cache = env("XDG_CACHE_HOME");
  if (!cache.is_absolute()) cache = env("HOME").empty() ? fs::path() : env("HOME") / ".cache";
  if (!cache.empty()) dirs.push_back(cache / "axial" / "datasets" / name);
  dirs.push_back(fs::path("/usr/share/datasets") / source->system_folder);
  return dirs;
}

Dataset load(const DatasetOptions& options, Split split) {
  if (options.name == "synthetic") return make_synthetic(options.synthetic, split);
  if (options.name == "image_folder") return read_folder(options.dir, options.folder, split);
  if (options.name == "image_list") return read_lists(options.folder, split);
  const Source* source = find_source(options.name);
  if (!source) throw DataError("no data set named '" + options.name + "', expected " + joined(dataset_names()));
  const std::vector<fs::path> given =
      options.dir.empty() ? default_dirs(options.name) : std::vector<fs::path>{options.dir};
  Dataset set = source->read(*source, find_folder(*source, given, split), split);
  set.name = source->name;
  set.classes = source->classes;
  set.mean = source->mean;
  set.std = source->std;
  return set;
}

void decode(Dataset& set, std::int64_t workers) {
  if (!set.pictures) return;
  const std::int64_t n = set.size();
  at::Tensor images = at::empty({n, set.channels(), set.height(), set.width()}, at::kByte);
  LoaderOptions options;
  options.workers = workers;
  Loader loader(set.pictures, options);
  Loader::Job job;
  for (std::int64_t i = 0; i < n; ++i) job.samples.push_back(i);
  job.out = images.mutable_data_ptr<std::uint8_t>();
  loader.finish(loader.start(std::move(job)));
  set.images = images;
  set.pictures = nullptr;
}

at::Tensor image_of(const Dataset& set, std::int64_t i) {
  if (!set.pictures) return set.images.select(0, i);
  at::Tensor image = at::empty({set.channels(), set.height(), set.width()}, at::kByte);
  read_picture(set.pictures->files[static_cast<std::size_t>(i)], set.pictures->options, nullptr,
               image.mutable_data_ptr<std::uint8_t>());
  return image;
}

Dataset subset(const Dataset& set, const at::Tensor& index) {
  Dataset part = set;
  part.labels = set.labels.index_select(0, index);
  if (!set.pictures) {
    part.images = set.images.index_select(0, index);
    return part;
  }
  const auto pictures = std::make_shared<Pictures>();
  pictures->options = set.pictures->options;
  const at::Tensor dense = index.contiguous();
  const std::int64_t* at = dense.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < index.size(0); ++i)
    pictures->files.push_back(set.pictures->files[static_cast<std::size_t>(at[i])]);
  part.pictures = pictures;
  return part;
}

}  // namespace axial::data
