#include "app/config/shipped.h"

#include <filesystem>

namespace axial::app {
namespace fs = std::filesystem;

std::string shipped_configs() {
  std::error_code error;
  // PREFIX/libexec/axial/axial, as cmake/Install.cmake puts it
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path folder = program.parent_path().parent_path().parent_path() / "share" / "axial" / "configs";
  return fs::is_directory(folder, error) ? folder.string() : std::string();
}

std::string find_config(const std::string& name) {
  std::error_code error;
  if (name.empty() || name.find('/') != std::string::npos || fs::exists(name, error)) return name;
  const std::string folder = shipped_configs();
  if (folder.empty()) return name;
  for (const char* ending : {"", ".yaml"}) {
    const fs::path path = fs::path(folder) / (name + ending);
    if (fs::is_regular_file(path, error)) return path.string();
  }
  return name;
}

}  // namespace axial::app
