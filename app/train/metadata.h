// What a checkpoint's metadata holds as JSON, read field by field within bounds: who crafts a file gets an error, and
// nothing counts on from a number that no run comes to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "app/checkpoint/safetensors.h"

namespace axial::app {

inline constexpr std::int64_t kMostCounted = 1'000'000'000'000'000;  // images, updates: a million epochs of 10^9

// Each throws CheckpointError "FILE: the metadata is damaged: KEY: FIELD: expected ..., found ...".
class Metadata {
 public:
  // The value of `key`, which must be there.
  Metadata(const SafetensorsFile& file, const std::filesystem::path& path, const std::string& key);

  std::int64_t integer(const std::string& field, std::int64_t low, std::int64_t high) const;
  double real(const std::string& field, double low, double high) const;
  // So many numbers each.
  std::vector<double> reals(const std::string& field, std::size_t count, double low, double high) const;
  // Lists of an integer in low..high and a finite number.
  std::vector<std::pair<std::int64_t, double>> pairs(const std::string& field, std::int64_t low,
                                                     std::int64_t high) const;
  bool has(const std::string& field) const;  // and it is not null
  // The value itself, where it is no map.
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  std::vector<std::string> texts() const;  // at least one

 private:
  using Json = nlohmann::json;
  const Json& at(const std::string& field, const std::string& expected) const;
  std::int64_t integer(const Json& value, const std::string& field, std::int64_t low, std::int64_t high) const;
  double real(const Json& value, const std::string& field, double low, double high) const;
  [[noreturn]] void fail(const std::string& field, const std::string& expected, const Json* found) const;

  std::string place_;  // "FILE: the metadata is damaged: KEY"
  Json json_;
};

}  // namespace axial::app
