#include "app/run/output_file.h"

#include <system_error>

#include "app/run/atomic_file.h"
#include "app/run/run_directory.h"
#include "app/run/run_error.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;

bool belongs_to_a_run(const fs::path& file) {
  const fs::path folder = file.parent_path();
  if (folder.filename() == "checkpoints" && is_run_folder(folder.parent_path())) return true;
  const std::string name = file.filename().string();
  return is_run_folder(folder) && (is_run_file(name) || name == ".lock");
}

}  // namespace

OutputFile::OutputFile(const std::string& path, const std::vector<fs::path>& inputs) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const bool exists = fs::exists(status);
  if (fs::is_directory(status)) throw RunError(path + ": is a folder, expected a file to write");
  // /dev/stdout and its like are links to what a process has open: what a rename would replace is not what is meant.
  const bool open_file = fs::is_symlink(fs::symlink_status(path, error)) &&
                         fs::read_symlink(path, error).string().rfind("/proc/", 0) == 0;
  if (open_file || (exists && !fs::is_regular_file(status))) {
    throw RunError(path + ": is no ordinary file (a device or a pipe, say), expected a file to write");
  }
  const fs::path target = behind_links(path);
  path_ = fs::weakly_canonical(target, error);
  if (error) path_ = target;
  given_ = path;
  keep(inputs);
  if (belongs_to_a_run(path_)) throw RunError(path + ": belongs to a run, which needs it; choose another file");
  const AtomicFile can_be_written(path_);  // minutes of work should not end in "no such folder"
}

void OutputFile::keep(const std::vector<fs::path>& inputs) const {
  std::error_code error;
  for (const fs::path& input : inputs) {
    if (fs::exists(path_, error) && fs::equivalent(path_, input, error))
      throw RunError(given_ + ": is what is read; it would be lost: choose another file");
  }
}

void OutputFile::write(const std::string& content) const {
  AtomicFile file(path_);
  file.write(content);
  file.commit();
}

}  // namespace axial::app
