// The installed `axial`: finds libtorch, without being linked with it, and becomes the program proper
// (libexec/axial/axial), so that a libtorch that is not there is one line and not the loader's.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

constexpr int kFailed = 1;
constexpr const char* kLibrary = "/libtorch_cpu.so";

// The folder two levels above this program: where the tree was put.
std::string prefix() {
  std::vector<char> path(4096);
  ssize_t size = 0;
  while ((size = ::readlink("/proc/self/exe", path.data(), path.size())) == static_cast<ssize_t>(path.size()))
    path.resize(2 * path.size());
  if (size < 0) return {};
  std::string folder(path.data(), static_cast<std::size_t>(size));
  for (int i = 0; i < 2; ++i) folder.resize(folder.find_last_of('/') == std::string::npos ? 0 : folder.find_last_of('/'));
  return folder;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Folders of libraries, in the order in which they are tried.
std::vector<std::string> places(const std::string& prefix) {
  std::vector<std::string> all = {prefix + "/lib/libtorch/lib"};
  if (const std::string given = variable("LIBTORCH"); !given.empty()) {
    all.push_back(given + "/lib");
    all.push_back(given + "/torch/lib");
  }
  all.push_back(AXIAL_LIBTORCH_ROOT "/lib");
  // as cmake/setup.sh; XDG's rule: a relative value is ignored
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  const std::string folder = !cache.empty() && cache[0] == '/' ? cache : home.empty() ? "" : home + "/.cache";
  if (!folder.empty()) all.push_back(folder + "/axial/libtorch-" AXIAL_LIBTORCH_VERSION "/torch/lib");
  std::vector<std::string> once;
  for (const std::string& place : all) {
    bool known = false;
    for (const std::string& other : once) known = known || other == place;
    if (!known) once.push_back(place);
  }
  return once;
}

void say(const std::string& message) { std::fprintf(stderr, "axial: error: %s\n", message.c_str()); }

}  // namespace

int main(int, char** argv) {
  const std::string root = prefix();
  std::string found, looked;
  for (const std::string& place : places(root)) {
    if (::access((place + kLibrary).c_str(), R_OK) == 0) {
      found = place;
      break;
    }
    looked += (looked.empty() ? "" : ", ") + place;
  }
  if (found.empty()) {
    say("libtorch " AXIAL_LIBTORCH_VERSION " is not there; looked for libtorch_cpu.so in " + looked +
        "; let LIBTORCH name the folder that holds lib/libtorch_cpu.so");
    return kFailed;
  }
  // What libtorch's libraries need lies beside them, or in the CUDA toolkit of the machine that built this.
  std::string path = found;
  for (const std::string& more : {std::string(AXIAL_TOOLKIT_PATH), variable("LD_LIBRARY_PATH")}) {
    if (!more.empty()) path += ":" + more;
  }
  const std::string program = root + "/libexec/axial/axial";
  if (::setenv("LD_LIBRARY_PATH", path.c_str(), 1) == 0) ::execv(program.c_str(), argv);
  say(program + ": cannot be started: " + std::strerror(errno));
  return kFailed;
}
