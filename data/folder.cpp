// Sets of image files: dir/train/<class>/... and dir/test/<class>/... (or val), dir/<class>/..., or CSV lists.
#include <algorithm>

#include <ATen/ops/empty.h>

#include "data/files.h"
#include "data/listing.h"
#include "data/readers.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

void check_size(const std::string& set, const PictureOptions& o) {
  if ((o.channels == 1 || o.channels == 3) && o.height >= 1 && o.width >= 1) return;
  throw DataError(set + ": images of " + std::to_string(o.channels) + " x " + std::to_string(o.height) + " x " +
                  std::to_string(o.width) + ", expected 1 or 3 channels and a size of 1 or more");
}

std::vector<std::string> classes_of(const Listing& training) {
  std::vector<std::string> classes;
  for (const Listed& image : training.images) classes.push_back(image.label);
  std::sort(classes.begin(), classes.end(), natural_less);
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  return classes;
}

// `where`: what the classes are those of, for errors.
Dataset make_set(const std::string& name, const Listing& part, const std::vector<std::string>& classes,
                 const std::string& where, const FolderOptions& options) {
  Dataset set;
  set.name = name;
  set.classes = classes;
  set.notes = part.notes;
  // ImageNet's, which fit photographs in general.
  const bool colour = options.picture.channels == 3;
  set.mean = colour ? std::vector<double>{0.485, 0.456, 0.406} : std::vector<double>{0.449};
  set.std = colour ? std::vector<double>{0.229, 0.224, 0.225} : std::vector<double>{0.226};
  const auto pictures = std::make_shared<Pictures>();
  pictures->options = options.picture;
  set.labels = at::empty({static_cast<std::int64_t>(part.images.size())}, at::kLong);
  std::int64_t* labels = set.labels.mutable_data_ptr<std::int64_t>();
  for (const Listed& image : part.images) {
    const auto found = std::find(classes.begin(), classes.end(), image.label);
    if (found == classes.end())
      throw DataError(image.path + ": of a class '" + image.label + "' that " + where + " lacks");
    *labels++ = found - classes.begin();
    pictures->files.push_back(image.path);
  }
  set.pictures = pictures;
  return set;
}

Dataset choose(const std::string& name, const Listing& training, const Listing& test, const fs::path& where,
               const FolderOptions& options, Split split) {
  const std::vector<std::string> classes = options.classes.empty() ? classes_of(training) : options.classes;
  const std::string of = options.classes.empty() ? where.string() : "the model";
  return make_set(name, split == Split::kTrain ? training : test, classes, of, options);
}

// One listing for both parts.
Dataset choose_divided(const std::string& name, const Listing& all, const fs::path& where,
                       const FolderOptions& options, Split split) {
  auto [training, test] = divide(all.images, options.test_fraction);
  if (test.empty()) {
    fail(where, "no test part, and data.test_fraction = " + std::to_string(options.test_fraction) + " of " +
                    std::to_string(all.images.size()) + " images makes none");
  }
  return choose(name, {std::move(training), all.notes}, {std::move(test), all.notes}, where, options, split);
}

}  // namespace

Dataset read_folder(const fs::path& dir, const FolderOptions& options, Split split) {
  check_size("image_folder", options.picture);
  if (dir.empty())
    throw DataError("image_folder: no folder given, expected one with train/<class>/ and test/<class>/, or <class>/");
  std::error_code error;
  if (!fs::is_directory(dir, error)) fail(dir, fs::exists(dir, error) ? "is no folder" : "no such folder");
  const auto is_folder = [&](const char* name) {
    std::error_code ignored;
    return fs::is_directory(dir / name, ignored);
  };
  const fs::path train = dir / "train", test = dir / (is_folder("test") ? "test" : "val");
  const bool has_train = is_folder("train"), has_test = is_folder("test") || is_folder("val");
  if (!has_train && !has_test) {
    Listing all = list_classes(dir);
    // A folder of another name than train/, most likely.
    if (classes_of(all).size() < 2) {
      fail(dir, "no folder 'train' in it, and one class alone, '" + all.images[0].label +
                    "'; expected train/<class>/ and test/<class>/, or a folder for each class");
    }
    return choose_divided("image_folder", all, dir, options, split);
  }
  // A trained model knows its classes: to evaluate it the test part is enough.
  const bool needs_train = split == Split::kTrain || options.classes.empty();
  if (needs_train && !has_train)
    fail(dir, "no folder 'train' in it, expected one with a folder of images for each class");
  if (split == Split::kTest && !has_test)
    fail(dir, "no folder 'test' nor 'val' in it, expected one with a folder of images for each class");
  return choose("image_folder", needs_train ? list_classes(train) : Listing{},
                split == Split::kTest ? list_classes(test) : Listing{}, train, options, split);
}

Dataset read_lists(const FolderOptions& options, Split split) {
  check_size("image_list", options.picture);
  if (options.train_list.empty()) throw DataError("image_list: no list given, expected a CSV file of path,label");
  const auto read = [&](const fs::path& file) { return read_list(file, options.list_outside); };
  if (options.test_list.empty())
    return choose_divided("image_list", read(options.train_list), options.train_list, options, split);
  const bool needs_train = split == Split::kTrain || options.classes.empty();
  return choose("image_list", needs_train ? read(options.train_list) : Listing{},
                split == Split::kTest ? read(options.test_list) : Listing{}, options.train_list, options, split);
}

}  // namespace axial::data
