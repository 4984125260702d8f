#include "app/train/metadata.h"

#include <cmath>
#include <cstdio>

#include "app/config/yaml_tree.h"

namespace axial::app {

namespace {

constexpr std::size_t kMostTexts = 1 << 20, kMostPairs = 1'000'000;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", value);
  return text;
}

std::string range(double low, double high) { return number(low) + ".." + number(high); }

std::string described(const nlohmann::json& value) {
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  if (value.is_object()) return "a map";
  return excerpt(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

Metadata::Metadata(const SafetensorsFile& file, const std::filesystem::path& path, const std::string& key)
    : place_(path.string() + ": the metadata is damaged: " + key) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) throw CheckpointError(place_ + ": is not there");
  // Discarded where it is no JSON; numbers beyond what a double holds are none either.
  json_ = Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  if (json_.is_discarded()) throw CheckpointError(place_ + ": expected JSON, found " + excerpt(found->second));
}

void Metadata::fail(const std::string& field, const std::string& expected, const Json* found) const {
  throw CheckpointError(place_ + (field.empty() ? "" : ": " + field) + ": expected " + expected + ", found " +
                        (found == nullptr ? "nothing" : described(*found)));
}

const nlohmann::json& Metadata::at(const std::string& field, const std::string& expected) const {
  if (!json_.is_object()) fail("", "a map", &json_);
  const auto found = json_.find(field);
  if (found == json_.end()) fail(field, expected, nullptr);
  return *found;
}

bool Metadata::has(const std::string& field) const {
  return json_.is_object() && json_.contains(field) && !json_.at(field).is_null();
}

std::int64_t Metadata::integer(const Json& value, const std::string& field, std::int64_t low,
                               std::int64_t high) const {
  const std::string expected = "an integer in " + std::to_string(low) + ".." + std::to_string(high);
  // The parser keeps what is not negative as unsigned.
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(high)
                                               : value.is_number_integer();
  if (!fits) fail(field, expected, &value);
  const auto result = value.get<std::int64_t>();
  if (result < low || result > high) fail(field, expected, &value);
  return result;
}

double Metadata::real(const Json& value, const std::string& field, double low, double high) const {
  const double result = value.is_number() ? value.get<double>() : std::nan("");
  if (!(result >= low && result <= high)) fail(field, "a number in " + range(low, high), &value);
  return result;
}

std::int64_t Metadata::integer(const std::string& field, std::int64_t low, std::int64_t high) const {
  return integer(at(field, "an integer"), field, low, high);
}

double Metadata::real(const std::string& field, double low, double high) const {
  return real(at(field, "a number"), field, low, high);
}

std::vector<double> Metadata::reals(const std::string& field, std::size_t count, double low, double high) const {
  const std::string expected = "a list of " + std::to_string(count) + " numbers in " + range(low, high);
  const Json& list = at(field, expected);
  if (!list.is_array() || list.size() != count) fail(field, expected, &list);
  std::vector<double> values;
  for (const Json& value : list) values.push_back(real(value, field, low, high));
  return values;
}

std::vector<std::pair<std::int64_t, double>> Metadata::pairs(const std::string& field, std::int64_t low,
                                                             std::int64_t high) const {
  const std::string expected = "a list of [integer, number]";
  const Json& list = at(field, expected);
  if (!list.is_array() || list.size() > kMostPairs) fail(field, expected, &list);
  std::vector<std::pair<std::int64_t, double>> values;
  for (const Json& pair : list) {
    if (!pair.is_array() || pair.size() != 2) fail(field, expected, &pair);
    values.emplace_back(integer(pair[0], field, low, high), real(pair[1], field, -1e300, 1e300));
  }
  return values;
}

std::int64_t Metadata::integer(std::int64_t low, std::int64_t high) const { return integer(json_, "", low, high); }

std::vector<std::string> Metadata::texts() const {
  const std::string expected = "a list of texts";
  if (!json_.is_array() || json_.empty() || json_.size() > kMostTexts) fail("", expected, &json_);
  std::vector<std::string> values;
  for (const Json& value : json_) {
    if (!value.is_string()) fail("", expected, &value);
    values.push_back(value.get<std::string>());
  }
  return values;
}

}  // namespace axial::app
