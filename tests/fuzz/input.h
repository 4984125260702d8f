// What fuzz targets share: the input as a file without a disk, and pieces of it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace axial::fuzz {

// A file in memory; its path can be opened as any other.
class MemoryFile {
 public:
  MemoryFile(const void* bytes, std::size_t size) : file_(::memfd_create("input", MFD_CLOEXEC)) {
    if (file_ < 0 || ::write(file_, bytes, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { ::close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

// A folder in which names of the readers' choice lead to files in memory.
class Links {
 public:
  Links() {
    std::string pattern = (std::filesystem::temp_directory_path() / "axial-fuzz-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~Links() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void turn(const char* name, const MemoryFile& to) const {
    std::error_code ignored;
    std::filesystem::remove(path_ / name, ignored);
    std::filesystem::create_symlink(to.path(), path_ / name);
  }

 private:
  std::filesystem::path path_;
};

// Numbers from the front of the input, the rest as it is.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint8_t byte() { return size_ == 0 ? 0 : (--size_, *data_++); }
  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// A property that does not hold is a finding, as a crash is.
inline void hold(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// What is wrong with an input is said in one line without control characters.
inline void one_line(const std::exception& error) {
  const std::string text = error.what();
  hold(!text.empty() && text.find('\n') == std::string::npos && text.find('\0') == std::string::npos,
       "an error is one line");
}

}  // namespace axial::fuzz
