#include "data/listing.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "data/files.h"
#include "kernels/philox.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::uint64_t hash(std::string_view text) {  // FNV-1a
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return kernels::mix64(value);
}

// The folders of a split, by name: each is a class. A link to a folder counts unless it leads upwards. Files beside
// them belong to no class: they go to `others`.
std::vector<std::string> class_folders(const fs::path& split, std::vector<fs::path>& others) {
  std::vector<std::string> names;
  std::error_code error;
  const fs::path here = fs::weakly_canonical(split, error);
  fs::directory_iterator entry(split, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;  // of an entry that vanished or dangles: no class
    if (name.front() == '.') continue;
    if (!entry->is_directory(ignored)) {
      others.push_back(entry->path());
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
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

std::string note_of(const std::vector<fs::path>& others) {
  const fs::path first = *std::min_element(others.begin(), others.end());
  return std::to_string(others.size()) + (others.size() == 1 ? " file was" : " files were") +
         " not used (only .png, .jpg and .jpeg in the folders of classes are), the first is " + first.string();
}

}  // namespace

bool is_name(std::string_view text) {
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

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
      ++i, ++j;
      continue;
    }
    const auto number = [](std::string_view text, std::size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const std::size_t from = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(from, at - from);
    };
    const std::string_view x = number(a, i), y = number(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if (i < a.size() || j < b.size()) return j < b.size();
  return a < b;  // 01 and 1
}

std::vector<fs::path> list_images(const fs::path& dir, std::vector<fs::path>* others) {
  const auto hidden = [](const fs::path& path) { return path.filename().native().front() == '.'; };
  const auto is_image = [](const fs::path& path) {
    std::string extension = path.extension().string();
    for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
  };
  std::vector<fs::path> found;
  std::error_code error;
  // Links to folders are not followed by default: a loop ends the walk at its first step.
  fs::recursive_directory_iterator entry(dir, error), end;
  while (!error && entry != end) {
    std::error_code ignored;  // of an entry that vanished or dangles: no image
    if (hidden(entry->path())) {
      if (entry->is_directory(ignored)) entry.disable_recursion_pending();
    } else if (is_image(entry->path()) && entry->is_regular_file(ignored)) {
      found.push_back(entry->path());
    } else if (others != nullptr && !entry->is_directory(ignored)) {
      others->push_back(entry->path());
    }
    entry.increment(error);
  }
  if (error) fail(dir, "cannot be listed: " + error.message());
  std::sort(found.begin(), found.end());
  return found;
}

Listing list_classes(const fs::path& dir) {
  Listing listing;
  std::vector<fs::path> others;
  for (const std::string& name : class_folders(dir, others)) {
    const std::vector<fs::path> images = list_images(dir / name, &others);
    if (images.empty()) fail(dir / name, "no .png, .jpg or .jpeg files in it");
    for (const fs::path& image : images) {
      listing.images.push_back({image.string(), name, image.lexically_relative(dir).generic_string()});
    }
  }
  if (listing.images.empty()) fail(dir, "no folders in it, expected one for each class");
  if (!others.empty()) listing.notes.push_back(note_of(others));
  return listing;
}

std::pair<std::vector<Listed>, std::vector<Listed>> divide(const std::vector<Listed>& images, double fraction) {
  std::map<std::string_view, std::vector<std::size_t>> of_label;
  for (std::size_t i = 0; i < images.size(); ++i) of_label[images[i].label].push_back(i);
  std::vector<char> second(images.size(), 0);
  for (auto& [label, members] : of_label) {
    const auto count = static_cast<std::int64_t>(members.size());
    const std::int64_t least = fraction > 0 && count > 1 ? 1 : 0;
    const std::int64_t wanted = std::clamp<std::int64_t>(std::llround(fraction * static_cast<double>(count)), least,
                                                         std::max<std::int64_t>(least, count - 1));
    std::sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
      return std::make_pair(hash(images[a].name), a) < std::make_pair(hash(images[b].name), b);
    });
    for (std::int64_t i = 0; i < wanted; ++i) second[members[static_cast<std::size_t>(i)]] = 1;
  }
  std::pair<std::vector<Listed>, std::vector<Listed>> parts;
  for (std::size_t i = 0; i < images.size(); ++i) (second[i] ? parts.second : parts.first).push_back(images[i]);
  return parts;
}

}  // namespace axial::data
