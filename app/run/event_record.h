// What TensorBoard event files are made of: TFRecord frames around Event protobufs, of which this encodes
// the few fields that scalars need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace axial::app {

std::uint32_t crc32c(const void* bytes, std::size_t count);  // Castagnoli

// uint64 length, masked crc of the length, payload, masked crc of the payload; all little-endian
std::string frame_record(const std::string& payload);

// message Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//                 SessionLog session_log = 7; }
std::string version_event(double wall_time);
std::string restart_event(double wall_time, std::int64_t step);  // readers drop what they hold from `step` on
std::string scalars_event(double wall_time, std::int64_t step,
                          const std::vector<std::pair<std::string, double>>& values);

}  // namespace axial::app
