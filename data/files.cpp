#include "data/files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <zlib.h>

namespace axial::data {
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kDeflateRatio = 1032;     // the most that one byte of deflate expands to
constexpr std::uint64_t kFirstChunk = 1u << 20;   // doubled while data keeps coming
constexpr std::uint64_t kLargestRead = 1u << 30;  // gzread counts in int

const char* kind_of(fs::file_type type) {
  switch (type) {
    case fs::file_type::directory:
      return "a folder";
    case fs::file_type::fifo:
      return "a pipe";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    default:
      return "not a regular file";
  }
}

}  // namespace

void fail(const fs::path& path, const std::string& what) { throw DataError(path.string() + ": " + what); }

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (status.type() == fs::file_type::not_found) fail(path_, "no such file");
  if (error) fail(path_, "cannot be read: " + error.message());
  // Before opening: a pipe would block for ever.
  if (!fs::is_regular_file(status)) fail(path_, std::string("is ") + kind_of(status.type()) + ", expected a file");
  const std::uint64_t size = fs::file_size(path_, error);
  if (error) fail(path_, "cannot be read: " + error.message());
  errno = 0;
  file_ = gzopen(path_.c_str(), "rb");
  if (!file_) fail(path_, std::string("cannot be opened: ") + (errno ? std::strerror(errno) : "out of memory"));
  gzbuffer(file_, 1u << 17);
  // gzdirect looks at the first bytes; what is no gzip passes through unchanged.
  compressed_ = gzdirect(file_) == 0;
  capacity_ = compressed_ ? size * kDeflateRatio : size;
}

InputFile::~InputFile() { gzclose(file_); }

std::vector<std::uint8_t> InputFile::read(std::uint64_t count) {
  std::vector<std::uint8_t> bytes;
  std::uint64_t filled = 0;
  while (filled < count) {
    // One byte more than can come shows the end at once.
    bytes.resize(std::min({count, std::max(kFirstChunk, 2 * filled), filled + capacity() + 1}));
    const std::uint64_t wanted = std::min<std::uint64_t>(bytes.size() - filled, kLargestRead);
    const int got = gzread(file_, bytes.data() + filled, static_cast<unsigned>(wanted));
    int code = Z_OK;
    const char* message = gzerror(file_, &code);
    if (got > 0) filled += static_cast<std::uint64_t>(got);
    if (code == Z_BUF_ERROR) {
      fail(path_, "gzip stream is cut: it ends in the middle, after " + std::to_string(done_ + filled) +
                      " bytes of content");
    }
    if (code == Z_ERRNO) fail(path_, std::string("cannot be read: ") + std::strerror(errno));
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      // zlib puts its own idea of the path before the reason.
      const char* reason = std::strrchr(message, ':');
      fail(path_, "gzip stream is damaged after " + std::to_string(done_ + filled) + " bytes of content (" +
                      (reason ? reason + 2 : message) + ")");
    }
    if (static_cast<std::uint64_t>(got) < wanted) break;
  }
  bytes.resize(filled);
  done_ += filled;
  return bytes;
}

fs::path find_file(const fs::path& dir, const std::vector<std::string>& names) {
  std::error_code error;
  for (const std::string& name : names) {
    if (fs::is_regular_file(dir / name, error)) return dir / name;
  }
  for (const std::string& name : names) {
    if (fs::exists(dir / name, error)) return dir / name;
  }
  return {};
}

}  // namespace axial::data
