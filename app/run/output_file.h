// The file that a command leaves its result in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace axial::app {

// Looks at `path` before the work begins and writes it at the end, as a whole or not at all; links are followed. What
// it may replace is a file that no run needs: throws RunError for devices, pipes and folders, for what a run keeps in
// its folder, and for the command's own `inputs`.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path, const std::vector<std::filesystem::path>& inputs = {});
  // The same for inputs that are known later. Throws RunError.
  void keep(const std::vector<std::filesystem::path>& inputs) const;
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& content) const;  // throws FileError

 private:
  std::string given_;
  std::filesystem::path path_;  // without links
};

}  // namespace axial::app
