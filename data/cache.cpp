#include "data/cache.h"

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include "data/files.h"
#include "kernels/philox.h"

namespace axial::data {
namespace fs = std::filesystem;

namespace {

class MemoryCache : public PictureCache {
 public:
  MemoryCache(std::int64_t pictures, std::int64_t bytes_each, std::int64_t most_bytes)
      : bytes_(static_cast<std::size_t>(bytes_each)),
        room_(most_bytes / bytes_each),
        slots_(static_cast<std::size_t>(pictures)) {}
  ~MemoryCache() override {
    for (auto& slot : slots_) delete[] slot.load();
  }

  bool get(std::int64_t i, std::uint8_t* out) override {
    const std::uint8_t* kept = slots_[static_cast<std::size_t>(i)].load(std::memory_order_acquire);
    if (kept == nullptr) return false;
    std::memcpy(out, kept, bytes_);
    return true;
  }

  void put(std::int64_t i, const std::uint8_t* in) override {
    if (room_.fetch_sub(1, std::memory_order_relaxed) <= 0) {
      room_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    std::uint8_t* const copy = new std::uint8_t[bytes_];
    std::memcpy(copy, in, bytes_);
    std::uint8_t* nothing = nullptr;
    if (slots_[static_cast<std::size_t>(i)].compare_exchange_strong(nothing, copy, std::memory_order_release)) return;
    delete[] copy;  // somebody was faster
    room_.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  std::size_t bytes_;
  std::atomic<std::int64_t> room_;
  std::vector<std::atomic<std::uint8_t*>> slots_;
};

// A file is kMagic and then, for each picture, a mark, the checksum of number and bytes, and the bytes.
constexpr char kMagic[16] = "axial pictures1";
constexpr std::uint32_t kMark = 0x50495831;
struct Heading {
  std::uint32_t mark, checksum;
};

std::uint32_t checksum(std::int64_t i, const std::uint8_t* bytes, std::size_t size) {
  const uLong number = crc32_z(0, reinterpret_cast<const Bytef*>(&i), sizeof i);
  return static_cast<std::uint32_t>(crc32_z(number, bytes, size));
}

// Two independent 64-bit sums.
class Name {
 public:
  void add(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) {
      a_ = (a_ ^ bytes[i]) * 0x100000001b3;
      b_ = (b_ + bytes[i]) * 0x9e3779b97f4a7c15 + (b_ >> 47);
    }
  }
  void add(const std::string& text) { add(text.c_str(), text.size() + 1); }
  void add(std::int64_t value) { add(&value, sizeof value); }
  std::string text() const {
    char hex[40];
    std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(kernels::mix64(a_)),
                  static_cast<unsigned long long>(kernels::mix64(b_)));
    return hex;
  }

 private:
  std::uint64_t a_ = 0xcbf29ce484222325, b_ = 1;
};

std::string name_of(const Pictures& pictures) {
  const PictureOptions& o = pictures.options;
  Name name;
  for (const std::int64_t value : {o.channels, o.height, o.width, static_cast<std::int64_t>(o.crop_mode),
                                   std::bit_cast<std::int64_t>(o.crop_pct)}) {
    name.add(value);
  }
  for (const std::string& file : pictures.files) {
    std::error_code ignored;
    struct stat status = {};
    if (::stat(file.c_str(), &status) != 0) fail(file, std::string("cannot be read: ") + std::strerror(errno));
    name.add(fs::absolute(file, ignored).lexically_normal().string());
    name.add(status.st_size);
    name.add(status.st_mtim.tv_sec);
    name.add(status.st_mtim.tv_nsec);
  }
  return name.text() + ".pixels";
}

class DiskCache : public PictureCache {
 public:
  DiskCache(const fs::path& folder, const Pictures& pictures)
      : bytes_(static_cast<std::size_t>(pictures.options.bytes())) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error && !fs::is_directory(folder)) fail(folder, "cannot be made: " + error.message());
    path_ = folder / name_of(pictures);
    const off_t size = offset(static_cast<std::int64_t>(pictures.files.size()));
    file_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    if (file_ >= 0 && is_ours(size)) return;
    if (file_ >= 0) ::close(file_);
    make(size);
  }
  ~DiskCache() override { ::close(file_); }

  bool get(std::int64_t i, std::uint8_t* out) override {
    Heading heading = {};
    if (!read(offset(i), &heading, sizeof heading) || heading.mark != kMark) return false;
    return read(offset(i) + static_cast<off_t>(sizeof heading), out, bytes_) &&
           checksum(i, out, bytes_) == heading.checksum;
  }

  // Room was made for everything at the start. What is not written all the same is decoded again.
  void put(std::int64_t i, const std::uint8_t* in) override {
    std::vector<std::uint8_t> record(sizeof(Heading) + bytes_);
    const Heading heading{kMark, checksum(i, in, bytes_)};
    std::memcpy(record.data(), &heading, sizeof heading);
    std::memcpy(record.data() + sizeof heading, in, bytes_);
    (void)!::pwrite(file_, record.data(), record.size(), offset(i));
  }

 private:
  off_t offset(std::int64_t i) const {
    return static_cast<off_t>(sizeof kMagic) + i * static_cast<off_t>(sizeof(Heading) + bytes_);
  }
  bool read(off_t at, void* out, std::size_t size) {
    return ::pread(file_, out, size, at) == static_cast<ssize_t>(size);
  }
  bool is_ours(off_t size) {
    struct stat status = {};
    char magic[sizeof kMagic];
    return ::fstat(file_, &status) == 0 && status.st_size == size && read(0, magic, sizeof magic) &&
           std::memcmp(magic, kMagic, sizeof magic) == 0;
  }
  void make(off_t size) {
    std::string temporary = path_.string() + ".XXXXXX";
    file_ = ::mkstemp(temporary.data());
    if (file_ < 0) fail(path_.parent_path(), std::string("is not writable: ") + std::strerror(errno));
    ::fcntl(file_, F_SETFD, FD_CLOEXEC);
    int error = ::posix_fallocate(file_, 0, size);
    if (error == 0 && ::pwrite(file_, kMagic, sizeof kMagic, 0) != static_cast<ssize_t>(sizeof kMagic)) error = errno;
    if (error == 0 && ::rename(temporary.c_str(), path_.c_str()) != 0) error = errno;
    if (error == 0) return;
    ::unlink(temporary.c_str());
    ::close(file_);
    fail(path_, "no room for " + std::to_string(size) + " bytes of decoded images: " + std::strerror(error) +
                    "; choose another data.cache_dir or data.cache");
  }

  fs::path path_;
  std::size_t bytes_;
  int file_ = -1;
};

}  // namespace

std::unique_ptr<PictureCache> memory_cache(std::int64_t pictures, std::int64_t bytes_each, std::int64_t most_bytes) {
  return std::make_unique<MemoryCache>(pictures, bytes_each, most_bytes);
}

std::unique_ptr<PictureCache> disk_cache(const fs::path& folder, const Pictures& pictures) {
  return std::make_unique<DiskCache>(folder, pictures);
}

}  // namespace axial::data
