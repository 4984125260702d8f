#include "app/run/run_directory.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/run/atomic_file.h"
#include "app/run/run_error.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".safetensors";

[[noreturn]] void fail(const fs::path& path, const std::string& what) { throw RunError(path.string() + ": " + what); }

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  // Some implementations report an existing folder (or a link to one) as an error.
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return;
  fail(path, "cannot be made: " + (error ? describe_error(error.value()) : std::string("a file is in the way")));
}

// A probe rather than access(): read-only file systems, quotas and full disks answer truthfully only to a write.
void check_writable(const fs::path& folder) {
  try {
    AtomicFile probe(folder / "probe");
    probe.write(std::string(4096, '\n'));
  } catch (const FileError& error) {
    const std::string message = error.what();
    fail(folder, "is not writable" + message.substr(message.rfind(": ")));
  }
}

std::shared_ptr<const int> acquire_lock(const fs::path& folder) {
  const fs::path path = folder / ".lock";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) fail(folder, "is not writable: " + describe_error(errno));
  std::shared_ptr<const int> lock(new int(file), [](const int* held) {
    ::close(*held);
    delete held;
  });
  int result;
  do result = ::flock(file, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) {
    char holder[32] = {};
    const ssize_t count = ::pread(file, holder, sizeof holder - 1, 0);
    const std::string pid(holder, count > 0 ? std::strcspn(holder, "\n") : 0);
    fail(folder, "another process " + (pid.empty() ? "" : "(" + pid + ") ") +
                     "is writing this run; wait for it or choose another folder");
  }
  // Any other failure: a file system without locks. The run goes on without one.
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (result == 0 && ::ftruncate(file, 0) == 0) write_all(file, pid.data(), pid.size());
  return lock;
}

// "epoch-<digits>.safetensors" -> number, else -1
std::int64_t epoch_number(const std::string& name) {
  const std::string prefix = "epoch-", suffix = kSuffix;
  if (name.size() <= prefix.size() + suffix.size() || name.rfind(prefix, 0) != 0 ||
      name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0)
    return -1;
  const std::string digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  if (digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoll(digits);
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_directory(ignored)) files.push_back(it->path());
  }
  return files;
}

void remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail(path, "cannot be removed: " + describe_error(errno));
}

bool is_run(const fs::path& path) {
  if (is_there(path / "checkpoints")) return true;
  const std::vector<fs::path> files = files_in(path);
  return std::any_of(files.begin(), files.end(),
                     [](const fs::path& file) { return is_run_file(file.filename().string()); });
}

// What a folder lacks of a run whose files it seems to hold: somebody may have a config.yaml, a metrics.csv or a
// folder of checkpoints, too. Empty: it lacks nothing, or it holds no such file (a run that died at once leaves an
// empty folder of checkpoints).
std::string lacks(const fs::path& path) {
  std::error_code ignored;
  const std::vector<fs::path> files = files_in(path);
  const bool traces = std::any_of(files.begin(), files.end(),
                                  [](const fs::path& file) { return is_run_file(file.filename().string()); }) ||
                      !fs::is_directory(path / "checkpoints", ignored) ||
                      !fs::is_empty(path / "checkpoints", ignored);
  if (!traces) return "";
  for (const char* name : {"config.yaml", "train.log"}) {
    if (!fs::is_regular_file(path / name, ignored)) return name;
  }
  return fs::is_directory(path / "checkpoints", ignored) ? "" : "checkpoints/";
}

void remove_run(const fs::path& path) {
  for (const fs::path& file : files_in(path / "checkpoints")) {
    const std::string name = file.filename().string();
    if (name == "last.safetensors" || name == "best.safetensors" || epoch_number(name) >= 0) remove_file(file);
  }
  for (const fs::path& file : files_in(path)) {
    if (is_run_file(file.filename().string())) remove_file(file);
  }
}

// What shows that a folder is somebody's own: folders in it, or pictures, among which a run's files would stand (and,
// in a set of pictures, its checkpoints would be a class). Empty: nothing does.
std::string others_in(const fs::path& path) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    std::string name = it->path().filename().string();
    if (name.starts_with(".") || name == "checkpoints") continue;
    if (it->is_directory(ignored)) return name + "/";
    std::string extension = it->path().extension().string();
    for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (extension == ".png" || extension == ".jpg" || extension == ".jpeg") return name;
  }
  return "";
}

void refuse_existing(const fs::path& path, RunDirectory::Mode mode) {
  if (mode != RunDirectory::Mode::kResume && !is_run(path)) {
    const std::string other = others_in(path);
    if (!other.empty()) fail(path, "is no folder for a run: it holds " + other + "; name a new folder");
  }
  if (mode == RunDirectory::Mode::kResume || !is_run(path)) return;
  if (const std::string missing = lacks(path); !missing.empty()) {
    fail(path, "is no folder for a run: it holds files that are named as a run's are, but no " + missing +
                   "; name a new folder");
  }
  if (mode != RunDirectory::Mode::kNew) return;
  const std::vector<fs::path> files = files_in(path / "checkpoints");
  const bool resumable = std::any_of(files.begin(), files.end(),
                                     [](const fs::path& file) { return file.extension() == kSuffix; });
  fail(path, std::string("a run is there already") +
                 (resumable ? "; continue it (--resume), replace it (--overwrite), or choose another folder"
                            : ", which came to no checkpoint; replace it (--overwrite) or choose another folder"));
}

}  // namespace

bool is_event_file(const std::string& name) {
  return name.rfind("events.out.tfevents.", 0) == 0 && name.size() > 6 &&
         name.compare(name.size() - 6, 6, ".axial") == 0;
}

bool is_run_file(const std::string& name) {
  return is_event_file(name) || name == "config.yaml" || name == "train.log" || name == "metrics.csv";
}

bool is_run_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path / "config.yaml", ignored) &&
         (fs::is_directory(path / "checkpoints", ignored) || fs::exists(path / "metrics.csv", ignored));
}

RunDirectory::RunDirectory(fs::path path, Mode mode) : path_(std::move(path)) {
  refuse_existing(path_, mode);
  make_folder(path_);
  lock_ = acquire_lock(path_);
  refuse_existing(path_, mode);  // somebody may have been faster
  make_folder(path_ / "checkpoints");
  check_writable(path_);
  check_writable(path_ / "checkpoints");
  remove_stale_temporaries(path_);
  remove_stale_temporaries(path_ / "checkpoints");
  if (mode == Mode::kOverwrite) remove_run(path_);
}

void RunDirectory::check(const fs::path& path, Mode mode) {
  refuse_existing(path, mode);
  check_root(path);
}

void RunDirectory::check_root(const fs::path& path) {
  std::error_code error;
  fs::path above = fs::absolute(path, error).lexically_normal();
  while (!is_there(above) && above.has_relative_path()) above = above.parent_path();
  if (!fs::is_directory(above, error)) {
    fail(path, "cannot be made: " + (error ? describe_error(error.value()) : above.string() + " is no folder"));
  }
  check_writable(above);
}

fs::path RunDirectory::epoch(std::int64_t number) const {
  char name[48];
  std::snprintf(name, sizeof name, "epoch-%04lld%s", static_cast<long long>(number), kSuffix);
  return path_ / "checkpoints" / name;
}

void RunDirectory::write_config(const std::string& yaml) const {
  try {
    AtomicFile file(path_ / "config.yaml");
    file.write(yaml);
    file.commit();
  } catch (const FileError& error) {
    throw RunError(error.what());
  }
}

void RunDirectory::keep_last(std::int64_t count, std::int64_t newest,
                             const std::vector<std::int64_t>& others) const {
  std::vector<std::pair<std::int64_t, fs::path>> epochs;
  for (const fs::path& file : files_in(path_ / "checkpoints")) {
    if (const std::int64_t number = epoch_number(file.filename().string()); number >= 0 && number <= newest)
      epochs.emplace_back(number, file);
  }
  std::sort(epochs.begin(), epochs.end());
  const std::size_t keep = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  for (std::size_t i = 0; i + keep < epochs.size(); ++i) {
    if (std::find(others.begin(), others.end(), epochs[i].first) == others.end()) remove_file(epochs[i].second);
  }
}

fs::path new_run_path(const fs::path& root, const std::string& dataset) {
  make_folder(root);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  const std::string name = dataset + "-" + stamp;
  for (int attempt = 1;; ++attempt) {
    fs::path path = root / (attempt == 1 ? name : name + "-" + std::to_string(attempt));
    if (::mkdir(path.c_str(), 0777) == 0) return path;
    if (errno != EEXIST) fail(path, "cannot be made: " + describe_error(errno));
  }
}

}  // namespace axial::app
