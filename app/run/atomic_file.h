// A file that is replaced as a whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace axial::app {

// "path: reason". Callers turn it into their own error.
struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Writes to "<name>.tmp-<pid>-<random>" in the folder of `path`; commit flushes it, renames it over `path` and
// flushes the folder. Until then the old file is as it was; without commit the temporary file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* bytes, std::size_t count);
  void write(const std::string& text) { write(text.data(), text.size()); }
  void commit();

 private:
  [[noreturn]] void fail(const std::string& what, int error) const;
  std::filesystem::path path_, temporary_;
  int file_ = -1;
};

// Where links lead from `path`, to a file that need not be there yet.
std::filesystem::path behind_links(const std::filesystem::path& path);

// All of it, whatever interrupts. 0 or the errno; a file-size limit is EFBIG, not a signal.
int write_all(int file, const void* bytes, std::size_t count);

// The same at the end of a file; where it fails the file gets back its old length, so that no later record
// continues half of one.
int append_all(int file, const std::string& text);

// Removes what killed writers left in `folder`. Only for who knows that nobody else is writing there (the
// holder of the run's lock): process ids say nothing across machines that share a file system.
void remove_stale_temporaries(const std::filesystem::path& folder);

// Past a file-size limit the kernel sends SIGXFSZ, which would end the process without a word; ignored (where
// nobody has set a handler), the write fails with EFBIG, which is reported.
void ignore_file_size_signal();

// "No space left on device" and what to do about it.
std::string describe_error(int error);

}  // namespace axial::app
