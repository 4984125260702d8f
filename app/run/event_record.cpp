#include "app/run/event_record.h"

#include <array>
#include <bit>

namespace axial::app {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = make_table();

// Checksums that lie within checksummed data would weaken it; the format therefore stores them rotated.
std::uint32_t masked_crc(const std::string& bytes) {
  const std::uint32_t crc = crc32c(bytes.data(), bytes.size());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class T>
std::string fixed(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

// Protobuf wire types
enum Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string tag(std::uint32_t number, Wire wire) { return varint(number << 3 | wire); }
std::string bytes_field(std::uint32_t number, const std::string& bytes) {
  return tag(number, kBytes) + varint(bytes.size()) + bytes;
}
std::string event(double wall_time, std::int64_t step) {
  return tag(1, kFixed64) + fixed(std::bit_cast<std::uint64_t>(wall_time)) + tag(2, kVarint) +
         varint(static_cast<std::uint64_t>(step));
}

}  // namespace

std::uint32_t crc32c(const void* bytes, std::size_t count) {
  const auto* next = static_cast<const unsigned char*>(bytes);
  std::uint32_t crc = ~0u;
  for (std::size_t i = 0; i < count; ++i) crc = (crc >> 8) ^ kTable[(crc ^ next[i]) & 0xff];
  return ~crc;
}

std::string frame_record(const std::string& payload) {
  const std::string length = fixed(static_cast<std::uint64_t>(payload.size()));
  return length + fixed(masked_crc(length)) + payload + fixed(masked_crc(payload));
}

std::string version_event(double wall_time) { return event(wall_time, 0) + bytes_field(3, "brain.Event:2"); }

std::string restart_event(double wall_time, std::int64_t step) {
  const std::string start = tag(1, kVarint) + varint(1);  // SessionLog.status = START
  return event(wall_time, step) + bytes_field(7, start);
}

std::string scalars_event(double wall_time, std::int64_t step,
                          const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [name, value] : values) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    summary += bytes_field(1, bytes_field(1, name) + tag(2, kFixed32) + fixed(bits));
  }
  return event(wall_time, step) + bytes_field(5, summary);
}

}  // namespace axial::app
