#include "app/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <set>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "app/checkpoint/safetensors_header.h"
#include "app/run/atomic_file.h"

namespace axial::app {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kAlignment = 8;              // of the data behind the header
constexpr const char* kChecksum = "crc32.";
constexpr const char* kMetadataChecksum = "crc32.__metadata__";  // no tensor may have that name
constexpr std::size_t kMaxMessage = 8000;
constexpr std::size_t kMaxNamed = 20;  // keys of a kind in one error

struct Type {
  const char* name;
  at::ScalarType type;
};
constexpr Type kTypes[] = {
    {"F64", at::kDouble}, {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}, {"I64", at::kLong},
    {"I32", at::kInt},    {"I16", at::kShort}, {"I8", at::kChar},       {"U8", at::kByte},  {"BOOL", at::kBool},
};

const Type* find_type(const std::string& name) {
  for (const Type& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

const Type* find_type(at::ScalarType scalar) {
  for (const Type& type : kTypes) {
    if (scalar == type.type) return &type;
  }
  return nullptr;
}

std::string checksum_text(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "%08" PRIx32, value);
  return text;
}

std::string checksum(const void* bytes, std::size_t count) {
  return checksum_text(static_cast<std::uint32_t>(::crc32_z(0, static_cast<const Bytef*>(bytes), count)));
}

std::string checksum(const std::map<std::string, std::string>& metadata) {
  uLong crc = 0;
  for (const auto& [key, value] : metadata) {
    if (key.rfind(kChecksum, 0) == 0) continue;
    // the terminating zeros keep ("ab", "c") and ("a", "bc") apart
    crc = ::crc32_z(crc, reinterpret_cast<const Bytef*>(key.c_str()), key.size() + 1);
    crc = ::crc32_z(crc, reinterpret_cast<const Bytef*>(value.c_str()), value.size() + 1);
  }
  return checksum_text(static_cast<std::uint32_t>(crc));
}

std::string describe(const at::Tensor& tensor) {
  const Type* type = find_type(tensor.scalar_type());
  return (type != nullptr ? std::string(type->name) : c10::toString(tensor.scalar_type())) + " " +
         shape_text(tensor.sizes());
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {
    // O_NONBLOCK: a pipe of that name must not hang
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file_ < 0) fail(errno == ENOENT ? "no such file" : std::string("cannot be read: ") + std::strerror(errno));
    struct stat status {};
    if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(file_);
      fail("is not a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  ~Reader() { ::close(file_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  std::uint64_t size() const { return size_; }

  void read(std::uint64_t offset, void* bytes, std::uint64_t count) const {
    char* next = static_cast<char*>(bytes);
    while (count > 0) {
      const ssize_t got = ::pread(file_, next, count, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(std::string("cannot be read: ") + std::strerror(errno));
      if (got == 0) fail("became shorter while it was read");
      next += got;
      offset += static_cast<std::uint64_t>(got);
      count -= static_cast<std::uint64_t>(got);
    }
  }

  [[noreturn]] void fail(const std::string& what) const { throw CheckpointError(path_.string() + ": " + what); }

 private:
  const std::filesystem::path& path_;
  int file_ = -1;
  std::uint64_t size_ = 0;
};

Header read_header(const Reader& reader, std::uint64_t* data_start) {
  std::uint64_t length = 0;
  if (reader.size() < sizeof length) {
    reader.fail("is no safetensors file: expected at least 8 bytes, found " + std::to_string(reader.size()));
  }
  reader.read(0, &length, sizeof length);
  if (length > reader.size() - sizeof length) {
    reader.fail("is cut short or no safetensors file: its header should have " + std::to_string(length) +
                " bytes, the file has " + std::to_string(reader.size()));
  }
  if (length > kMaxHeader) {
    reader.fail("has a header of " + std::to_string(length) + " bytes, at most " + std::to_string(kMaxHeader) +
                " are allowed");
  }
  std::string text(length, '\0');
  reader.read(sizeof length, text.data(), length);
  Header header;
  if (const std::string error = parse_header(text, &header); !error.empty()) reader.fail("bad header: " + error);
  *data_start = sizeof length + length;
  return header;
}

// Types, and shapes against byte ranges; ranges inside the file, without overlap or gap.
void check_entries(const Reader& reader, Header* header, std::uint64_t data_size) {
  for (const TensorEntry& entry : header->tensors) {
    const Type* type = find_type(entry.dtype);
    if (type == nullptr) reader.fail("'" + entry.name + "' has the unsupported type '" + entry.dtype + "'");
    // Zeros do not hide the other sizes: strides are computed from them.
    std::int64_t strides = static_cast<std::int64_t>(c10::elementSize(type->type));
    for (const std::int64_t size : entry.shape) {
      if (__builtin_mul_overflow(strides, std::max<std::int64_t>(size, 1), &strides))
        reader.fail("'" + entry.name + "' has a shape past all bounds: " + shape_text(entry.shape));
    }
    const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
    const std::uint64_t bytes = empty ? 0 : static_cast<std::uint64_t>(strides);
    if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
      reader.fail("'" + entry.name + "' has " + std::to_string(entry.begin) + ".." + std::to_string(entry.end) +
                  " as its byte range, expected " + std::to_string(bytes) + " bytes for " + entry.dtype + " " +
                  shape_text(entry.shape));
    }
    if (entry.end > data_size) {
      reader.fail("is cut short: '" + entry.name + "' should end at byte " + std::to_string(entry.end) +
                  " of the data, the file has " + std::to_string(data_size));
    }
  }
  std::sort(header->tensors.begin(), header->tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : header->tensors) {
    if (entry.begin != covered) {
      reader.fail("'" + entry.name + "' starts at byte " + std::to_string(entry.begin) + " of the data, expected " +
                  std::to_string(covered) + (entry.begin < covered ? " (overlap)" : " (gap)"));
    }
    covered = entry.end;
  }
  if (covered != data_size) {
    reader.fail("has " + std::to_string(data_size - covered) + " bytes behind its last tensor");
  }
}

at::Tensor allocate(const Reader& reader, const TensorEntry& entry) {
  try {
    return at::empty(entry.shape, at::TensorOptions().dtype(find_type(entry.dtype)->type).device(at::kCPU));
  } catch (const std::exception&) {  // libtorch's message carries a backtrace
    reader.fail("no memory for '" + entry.name + "' (" + std::to_string(entry.end - entry.begin) + " bytes)");
  }
}

std::string list(const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = std::string("; ") + title + " ";
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNamed); ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kMaxNamed) text += " and " + std::to_string(names.size() - kMaxNamed) + " more";
  return text;
}

}  // namespace

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

CheckpointError::CheckpointError(const std::string& message)
    : std::runtime_error([&] {
        std::string line = message.size() > kMaxMessage ? message.substr(0, kMaxMessage) + "..." : message;
        for (char& c : line) c = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
        return line;
      }()) {}

void write_safetensors(const std::filesystem::path& path, const SafetensorsFile& file) {
  const auto fail = [&](const std::string& what) { throw CheckpointError(path.string() + ": " + what); };
  struct Item {
    const std::string* name;
    at::Tensor tensor;
    const Type* type;
  };
  std::vector<Item> items;
  for (const auto& [name, tensor] : file.tensors) {
    if (name == "__metadata__") fail("a tensor cannot be called __metadata__");
    if (!tensor.defined()) fail("'" + name + "' is undefined");
    const Type* type = find_type(tensor.scalar_type());
    if (type == nullptr || tensor.layout() != at::kStrided)
      fail("'" + name + "' cannot be written as " + c10::toString(tensor.scalar_type()));
    items.push_back({&name, tensor.detach().to(at::kCPU).resolve_neg().contiguous(), type});
  }
  // Widest types first, so that every tensor starts at a multiple of its own element size.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return c10::elementSize(a.type->type) > c10::elementSize(b.type->type);
  });

  Header header;
  for (const auto& [key, value] : file.metadata) {
    if (key.rfind(kChecksum, 0) != 0) header.metadata.emplace(key, value);
  }
  header.metadata[kMetadataChecksum] = checksum(header.metadata);
  std::uint64_t offset = 0;
  for (const Item& item : items) {
    const std::uint64_t bytes = item.tensor.nbytes();
    const at::IntArrayRef sizes = item.tensor.sizes();
    header.tensors.push_back({*item.name, item.type->name, {sizes.begin(), sizes.end()}, offset, offset + bytes});
    header.metadata[kChecksum + *item.name] = checksum(item.tensor.const_data_ptr(), bytes);
    offset += bytes;
  }
  try {
    std::string text = print_header(header);
    text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
    if (text.size() > kMaxHeader) fail("its header would have " + std::to_string(text.size()) + " bytes");
    const std::uint64_t length = text.size();
    AtomicFile out(path);
    out.write(&length, sizeof length);
    out.write(text);
    for (const Item& item : items) out.write(item.tensor.const_data_ptr(), item.tensor.nbytes());
    out.commit();
  } catch (const FileError& error) {
    throw CheckpointError(error.what());
  } catch (const std::invalid_argument& error) {
    fail(error.what());
  }
}

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  const Reader reader(path);
  std::uint64_t data_start = 0;
  Header header = read_header(reader, &data_start);
  check_entries(reader, &header, reader.size() - data_start);

  SafetensorsFile file;
  std::map<std::string, std::string> checksums;
  for (const auto& [key, value] : header.metadata)
    (key.rfind(kChecksum, 0) == 0 ? checksums : file.metadata).emplace(key, value);
  // A file with checksums has all of them: one that is missing was damaged itself.
  const bool checked = !checksums.empty();
  const auto check = [&](const std::string& key, const std::string& what, const std::string& found) {
    const auto expected = checksums.find(key);
    if (expected == checksums.end()) reader.fail(what + " damaged: no checksum " + key);
    if (found != expected->second)
      reader.fail(what + " damaged: checksum " + found + ", expected " + expected->second);
    checksums.erase(expected);
  };
  if (checked) check(kMetadataChecksum, "its metadata is", checksum(file.metadata));
  for (const TensorEntry& entry : header.tensors) {
    at::Tensor tensor = allocate(reader, entry);
    reader.read(data_start + entry.begin, tensor.mutable_data_ptr(), entry.end - entry.begin);
    if (checked) {
      check(kChecksum + entry.name, "'" + entry.name + "' is",
            checksum(tensor.const_data_ptr(), entry.end - entry.begin));
    }
    if (tensor.scalar_type() == at::kBool) {
      const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
      if (std::any_of(bytes, bytes + tensor.nbytes(), [](unsigned char byte) { return byte > 1; }))
        reader.fail("'" + entry.name + "' is BOOL and holds bytes other than 0 and 1");
    }
    file.tensors.emplace(entry.name, std::move(tensor));
  }
  if (!checksums.empty())
    reader.fail("has the checksum " + checksums.begin()->first + " of a tensor that is not there");
  return file;
}

void load_into(const SafetensorsFile& file, const std::filesystem::path& path, const std::string& prefix,
               const std::vector<std::pair<std::string, at::Tensor>>& targets) {
  std::vector<std::string> missing, unexpected, different;
  std::set<std::string> wanted;
  for (const auto& [name, target] : targets) {
    const std::string key = prefix + name;
    wanted.insert(key);
    const auto found = file.tensors.find(key);
    if (found == file.tensors.end()) {
      missing.push_back(key);
    } else if (!target.defined()) {
      different.push_back(key + " (expected nothing, found " + describe(found->second) + ")");
    } else if (found->second.sizes() != target.sizes() || found->second.scalar_type() != target.scalar_type()) {
      different.push_back(key + " (expected " + describe(target) + ", found " + describe(found->second) + ")");
    }
  }
  for (auto it = file.tensors.lower_bound(prefix); it != file.tensors.end() && it->first.rfind(prefix, 0) == 0;
       ++it) {
    if (wanted.count(it->first) == 0) unexpected.push_back(it->first);
  }
  const std::string problems =
      list("missing", missing) + list("unexpected", unexpected) + list("different", different);
  if (!problems.empty()) throw CheckpointError(path.string() + ": does not fit:" + problems.substr(1));

  const c10::NoGradGuard no_grad;
  for (const auto& [name, target] : targets) target.copy_(file.tensors.at(prefix + name));
}

}  // namespace axial::app
