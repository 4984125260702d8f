// One reader for each file format, and what is known of each set beforehand. Inside data/ only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace axial::data {

// A set that is published in files.
struct Source {
  std::string name;                     // as users write it
  std::string system_folder;            // below /usr/share/datasets
  std::vector<std::string> subfolders;  // where other tools' downloads put the files, below a given folder
  std::string files;                    // what an error asks for
  std::vector<std::string> classes;
  std::vector<double> mean, std;  // per channel, of the training split scaled to [0, 1]
  // Names that the first file of a split may have, in order of preference: how a folder is recognised.
  std::vector<std::string> (*first_file)(Split);
  Dataset (*read)(const Source& source, const std::filesystem::path& dir, Split split);
};

const std::vector<Source>& sources();

// IDX (idx.cpp): images [N, H, W] and labels [N] in one file each.
std::vector<std::string> idx_image_files(Split split);
Dataset read_idx_set(const Source& source, const std::filesystem::path& dir, Split split);

// CIFAR's binary version (cifar.cpp): records of label bytes and 3 x 32 x 32 pixels.
std::vector<std::string> cifar10_first_file(Split split);
Dataset read_cifar10(const Source& source, const std::filesystem::path& dir, Split split);
std::vector<std::string> cifar100_first_file(Split split);
Dataset read_cifar100(const Source& source, const std::filesystem::path& dir, Split split);

// Image files, in a folder for each class or in lists (folder.cpp).
Dataset read_folder(const std::filesystem::path& dir, const FolderOptions& options, Split split);
Dataset read_lists(const FolderOptions& options, Split split);

// Patterns and noise made here (synthetic.cpp).
Dataset make_synthetic(const SyntheticOptions& options, Split split);

}  // namespace axial::data
