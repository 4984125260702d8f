// Which image files a set consists of: folders of classes, or a list.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/error.h"

namespace axial::data {

// An image file and the name of its class. `name`: the path as the set's own folder or list tells it, by which a set
// without a test part is divided.
struct Listed {
  std::string path, label, name;
};

struct Listing {
  std::vector<Listed> images;
  std::vector<std::string> notes;  // what the user should know, a line each
};

// DIR/<class>/...: each folder is a class, whose .png, .jpg and .jpeg files count in any depth.
Listing list_classes(const std::filesystem::path& dir);

// A CSV file (RFC 4180: "quoted, fields", doubled quotes) of path,label, with or without a header that names the
// columns. Relative paths start at the list's folder and may not leave it; absolute ones are refused, both unless
// `outside`.
Listing read_list(const std::filesystem::path& file, bool outside);

// The image files below `dir`, by extension (.png, .jpg, .jpeg in any case), sorted by path. Hidden files and
// folders are skipped (._x.jpg, .DS_Store), symbolic links to folders are not followed, links to files are. Files
// that are neither images nor hidden are added to `others`, where that is given.
std::vector<std::filesystem::path> list_images(const std::filesystem::path& dir,
                                               std::vector<std::filesystem::path>* others = nullptr);

// img2 before img10: runs of digits compare as numbers.
bool natural_less(std::string_view a, std::string_view b);

// Of each label's images `fraction` (at least one, where there are two) to the second part, chosen by a hash of their
// names, so that a set that grows keeps most of its division. The order stays.
std::pair<std::vector<Listed>, std::vector<Listed>> divide(const std::vector<Listed>& images, double fraction);

// UTF-8 without control characters: what goes into checkpoints, JSON and tables.
bool is_name(std::string_view text);

}  // namespace axial::data
