// A folder of images: dir/train/<class>/... and dir/test/<class>/... (or val), decoded and fitted to one size.
#include <algorithm>
#include <cstring>
#include <mutex>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "data/files.h"
#include "data/image.h"
#include "data/readers.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

// UTF-8 without control characters: it goes into checkpoints, JSON and tables.
bool is_name(const std::string& text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) { return static_cast<unsigned>(static_cast<unsigned char>(text[k])); };
    const unsigned first = byte(i);
    const std::size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0x20 || first == 0x7f || (first >= 0x80 && first < 0xc2) || first > 0xf4 ||
        i + length > text.size()) {
      return false;
    }
    unsigned code = length == 1 ? first : first & (0x7fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
      code = code << 6 | (byte(i + k) & 0x3f);
    }
    const bool too_long = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (too_long || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) || (code >= 0x80 && code < 0xa0))
      return false;
    i += length;
  }
  return true;
}

// The folders of a split, by name: each is a class. A link to a folder counts unless it leads upwards. Files beside
// them belong to no class: they go to `others`, where that is given.
std::vector<std::string> class_folders(const fs::path& split, std::vector<fs::path>* others = nullptr) {
  std::vector<std::string> names;
  std::error_code error;
  const fs::path here = fs::weakly_canonical(split, error);
  fs::directory_iterator entry(split, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;  // of an entry that vanished or dangles: no class
    if (name.front() == '.') continue;
    if (!entry->is_directory(ignored)) {
      if (others != nullptr) others->push_back(entry->path());
      continue;
    }
    const fs::path target = fs::weakly_canonical(entry->path(), ignored);
    const bool upwards = std::mismatch(target.begin(), target.end(), here.begin(), here.end()).first == target.end();
    if (upwards) continue;
    if (!is_name(name))
      fail(entry->path(), "the name of a class must be UTF-8 without control characters; rename it");
    names.push_back(name);
  }
  if (error) fail(split, "cannot be listed: " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

fs::path split_folder(const fs::path& dir, Split split) {
  const std::vector<std::string> names =
      split == Split::kTrain ? std::vector<std::string>{"train"} : std::vector<std::string>{"test", "val"};
  std::error_code error;
  if (!fs::is_directory(dir, error)) fail(dir, fs::exists(dir, error) ? "is no folder" : "no such folder");
  for (const std::string& name : names) {
    if (fs::is_directory(dir / name, error)) return dir / name;
  }
  fail(dir, "no folder '" + names[0] + "'" + (names.size() > 1 ? " nor '" + names[1] + "'" : "") +
                " in it, expected one with a folder of images for each class");
}

std::string note_of(std::vector<fs::path> others) {
  const fs::path first = *std::min_element(others.begin(), others.end());
  return std::to_string(others.size()) + (others.size() == 1 ? " file was" : " files were") +
         " not used (only .png, .jpg and .jpeg in the folders of classes are), the first is " + first.string();
}

}  // namespace

Dataset read_folder(const fs::path& dir, const FolderOptions& options, Split split) {
  if (dir.empty())
    throw DataError("image_folder: no folder given, expected one with train/<class>/ and test/<class>/");
  if ((options.channels != 1 && options.channels != 3) || options.height < 1 || options.width < 1) {
    throw DataError("image_folder: images of " + std::to_string(options.channels) + " x " +
                    std::to_string(options.height) + " x " + std::to_string(options.width) +
                    ", expected 1 or 3 channels and a size of 1 or more");
  }
  Dataset set;
  set.name = "image_folder";
  // Labels come from the training split, so that both splits agree on them.
  const fs::path train = split_folder(dir, Split::kTrain), root = split_folder(dir, split);
  set.classes = class_folders(train);
  if (set.classes.empty()) fail(train, "no folders in it, expected one for each class");
  std::vector<fs::path> files, others;
  std::vector<std::int64_t> labels;
  for (const std::string& name : class_folders(root, &others)) {
    const auto found = std::lower_bound(set.classes.begin(), set.classes.end(), name);
    if (found == set.classes.end() || *found != name) {
      fail(root / name, "is a class that " + train.string() + " lacks");
    }
    const std::vector<fs::path> images = list_images(root / name, &others);
    if (images.empty()) fail(root / name, "no .png, .jpg or .jpeg files in it");
    files.insert(files.end(), images.begin(), images.end());
    labels.insert(labels.end(), images.size(), found - set.classes.begin());
  }
  if (files.empty()) fail(root, "no folders in it, expected one for each class");
  if (!others.empty()) set.notes.push_back(note_of(std::move(others)));

  const std::int64_t count = static_cast<std::int64_t>(files.size());
  const std::int64_t size = options.channels * options.height * options.width;
  set.images = at::empty({count, options.channels, options.height, options.width}, at::kByte);
  set.labels = at::empty({count}, at::kLong);
  std::copy(labels.begin(), labels.end(), set.labels.mutable_data_ptr<std::int64_t>());
  std::uint8_t* out = set.images.mutable_data_ptr<std::uint8_t>();
  // Whatever the threads do, the error reported is that of the first bad file.
  std::mutex mutex;
  std::int64_t first_bad = count;
  std::string error;
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      try {
        const at::Tensor image =
            fit(read_image(files[static_cast<std::size_t>(i)], options.channels), options.height, options.width);
        std::memcpy(out + i * size, image.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(size));
      } catch (const DataError& bad) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (i < first_bad) {
          first_bad = i;
          error = bad.what();
        }
        return;  // the rest of this share comes later in the order
      }
    }
  });
  if (first_bad < count) throw DataError(error);
  // ImageNet's, which fit photographs in general.
  set.mean = options.channels == 3 ? std::vector<double>{0.485, 0.456, 0.406} : std::vector<double>{0.449};
  set.std = options.channels == 3 ? std::vector<double>{0.229, 0.224, 0.225} : std::vector<double>{0.226};
  return set;
}

}  // namespace axial::data
