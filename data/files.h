// Files read front to back, gzip-compressed or not, with every bound checked. Inside data/ only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/error.h"

struct gzFile_s;  // zlib's

namespace axial::data {

// Throws DataError("path: what"): every message of data/ about a file has this form.
[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what);

// Whether the content is compressed is decided by its first bytes, never by the name.
class InputFile {
 public:
  // Throws DataError where the path is absent, not a regular file (a folder, a pipe) or not readable.
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  bool compressed() const { return compressed_; }
  // The most content that can follow: the rest of the file, or under gzip what deflate could make at best.
  // A header that promises more is refused before anything is allocated.
  std::uint64_t capacity() const { return capacity_ > done_ ? capacity_ - done_ : 0; }
  // The next `count` bytes, fewer only at the end of the content. Memory grows with what arrives, not
  // with what was asked for. Throws DataError on a damaged or cut gzip stream.
  std::vector<std::uint8_t> read(std::uint64_t count);
  // Nothing follows. Under gzip this is also where the checksum of the content is compared.
  bool at_end() { return read(1).empty(); }

 private:
  std::filesystem::path path_;
  gzFile_s* file_ = nullptr;
  bool compressed_ = false;
  std::uint64_t capacity_ = 0, done_ = 0;
};

// The first of `names` that is a file in `dir`; failing that the first that exists as anything (so that
// reading it says what it is); empty where none does.
std::filesystem::path find_file(const std::filesystem::path& dir, const std::vector<std::string>& names);

}  // namespace axial::data
