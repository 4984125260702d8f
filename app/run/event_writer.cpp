#include <atomic>
#include <cerrno>
#include <chrono>

#include <fcntl.h>
#include <unistd.h>

#include "app/run/atomic_file.h"
#include "app/run/event_record.h"
#include "app/run/run_directory.h"
#include "app/run/run_error.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// events.out.tfevents.<seconds>.<host>.<pid>.<n>.axial: readers want the first three words and take the files
// in the order of their names; the last word tells that the file is ours to remove.
std::string file_name() {
  static std::atomic<int> count{0};
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') host[0] = '-';
  return "events.out.tfevents." + std::to_string(static_cast<long long>(now())) + "." + host + "." +
         std::to_string(::getpid()) + "." + std::to_string(count++) + ".axial";
}

// Names stay: readers take files in their order.
void copy_files(const fs::path& from, const fs::path& to) {
  std::error_code error;
  for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (!is_event_file(name) || !it->is_regular_file(ignored)) continue;
    if (!fs::copy_file(it->path(), to / name, fs::copy_options::overwrite_existing, error)) break;
  }
  if (error) throw RunError(from.string() + ": its event files cannot be copied: " + describe_error(error.value()));
}

}  // namespace

EventWriter::EventWriter(const fs::path& folder, std::int64_t resume_step, const fs::path& from)
    : path_(folder / file_name()) {
  ignore_file_size_signal();
  if (!from.empty()) copy_files(from, folder);
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) throw RunError(path_.string() + ": cannot be written: " + describe_error(errno));
  try {
    write(version_event(now()));
    if (resume_step >= 0) write(restart_event(now(), resume_step));
  } catch (...) {
    ::close(file_);
    throw;
  }
}

EventWriter::~EventWriter() { ::close(file_); }

void EventWriter::write(const std::string& event) {
  if (const int error = append_all(file_, frame_record(event)); error != 0)
    throw RunError(path_.string() + ": cannot be written: " + describe_error(error));
}

void EventWriter::scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  write(scalars_event(now(), step, values));
}

}  // namespace axial::app
