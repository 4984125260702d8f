#include "app/run/atomic_file.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace axial::app {
namespace {

constexpr int kAttempts = 100;  // names tried before giving up
constexpr int kMostLinks = 40;  // as the kernel follows

int flush(int file) {
  int result;
  do result = ::fsync(file);
  while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

// <anything>.tmp-<digits>-<16 hexadecimal digits>
bool is_temporary(const std::string& name) {
  const auto dot = name.rfind(".tmp-");
  if (dot == std::string::npos) return false;
  const std::string tail = name.substr(dot + 5);
  const auto dash = tail.find('-');
  if (dash == std::string::npos || dash == 0 || tail.size() != dash + 17) return false;
  return tail.find_first_not_of("0123456789") == dash &&
         tail.find_first_not_of("0123456789abcdef", dash + 1) == std::string::npos;
}

}  // namespace

void ignore_file_size_signal() {
  struct sigaction action {};
  if (::sigaction(SIGXFSZ, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) std::signal(SIGXFSZ, SIG_IGN);
}

std::string describe_error(int error) {
  std::string reason = std::strerror(error);
  if (error == ENOSPC || error == EDQUOT) return reason + "; make room and start again";
  if (error == EFBIG) return reason + "; raise the limit (ulimit -f) or write elsewhere";
  return reason;
}

std::filesystem::path behind_links(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path target = path;
  for (int links = 0; links < kMostLinks && fs::is_symlink(fs::symlink_status(target, error)); ++links) {
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  return target;
}

int write_all(int file, const void* bytes, std::size_t count) {
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = ::write(file, next, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return EIO;
    next += written;
    count -= static_cast<std::size_t>(written);
  }
  return 0;
}

int append_all(int file, const std::string& text) {
  struct stat before {};
  if (::fstat(file, &before) != 0) return errno;
  const int error = write_all(file, text.data(), text.size());
  if (error != 0 && ::ftruncate(file, before.st_size) != 0) return errno;
  return error;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  ignore_file_size_signal();
  std::random_device random;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    char suffix[64];
    const auto number = (static_cast<std::uint64_t>(random()) << 32) | random();
    std::snprintf(suffix, sizeof suffix, ".tmp-%ld-%016llx", static_cast<long>(::getpid()),
                  static_cast<unsigned long long>(number));
    temporary_ = path_;
    temporary_ += suffix;
    // 0666: the user's umask decides who may read it
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ >= 0 || (errno != EEXIST && errno != EINTR)) break;
  }
  if (file_ < 0) fail("cannot be written", errno);
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const std::string& what, int error) const {
  throw FileError(path_.string() + ": " + what + ": " + describe_error(error));
}

void AtomicFile::write(const void* bytes, std::size_t count) {
  if (const int error = write_all(file_, bytes, count); error != 0) fail("cannot be written", error);
}

void AtomicFile::commit() {
  if (const int error = flush(file_); error != 0) fail("cannot be flushed", error);
  const int file = file_;
  file_ = -1;
  // network file systems report a full disk here; after EINTR the descriptor is gone all the same
  if (::close(file) != 0 && errno != EINTR) fail("cannot be written", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be replaced", errno);
  temporary_.clear();

  std::filesystem::path folder = path_.parent_path();
  if (folder.empty()) folder = ".";
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // a folder that may be written but not listed: the file is in place, only its name is not flushed
  if (directory < 0) return;
  const int error = flush(directory);
  ::close(directory);
  // some file systems cannot flush folders
  if (error != 0 && error != EINVAL && error != ENOTSUP) fail("was written, but its folder cannot be flushed", error);
}

void remove_stale_temporaries(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored)) {
    if (is_temporary(it->path().filename().string()) && it->is_regular_file(ignored)) ::unlink(it->path().c_str());
    if (ignored) break;
  }
}

}  // namespace axial::app
