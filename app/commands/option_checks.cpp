#include "app/commands/option_checks.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/suggest.h"
#include "app/config/value.h"
#include "app/config/yaml_tree.h"

namespace axial::app {

namespace {

constexpr double kMostEpochs = 1e6;  // train.epochs goes no further
constexpr double kMostMinutes = 1e7;
constexpr std::uint64_t kMostClasses = 1 << 20;

std::string found(const std::string& expected, const std::string& text) {
  return "expected " + expected + ", found " + (text.empty() ? "nothing" : excerpt(text));
}

}  // namespace

std::string check_device(const std::string& text) {
  const Rule& rule = std::get<Rule>(find_key("train.device")->limits.each);
  return rule.accepts(text) ? "" : found(rule.text, text) + meant_value(text, rule.names);
}

std::string check_epochs(const std::string& text) {
  double value = 0;
  bool overflow = false;
  const bool good = parse_real(text, &value, &overflow) && !overflow && value > 0 && value <= kMostEpochs;
  return good ? "" : found("a number of epochs above 0", text);
}

std::string check_minutes(const std::string& text) {
  double value = 0;
  bool overflow = false;
  const bool good = parse_real(text, &value, &overflow) && !overflow && value > 0 && value <= kMostMinutes;
  return good ? "" : found("a number of minutes above 0", text);
}

std::string check_count(const std::string& text) {
  bool negative = false, overflow = false;
  std::uint64_t value = 0;
  const bool good = parse_integer(text, &negative, &value, &overflow) && !negative && !overflow && value >= 1 &&
                    value <= kMostClasses;
  return good ? "" : found("an integer from 1", text);
}

std::string check_seed(const std::string& text) {
  bool negative = false, overflow = false;
  std::uint64_t value = 0;
  const bool good = parse_integer(text, &negative, &value, &overflow) && !negative && !overflow;
  return good ? "" : found("an integer in 0..18446744073709551615", text);
}

void check_ending(const std::string& path, const std::string& ending) {
  const std::string found = std::filesystem::path(path).extension().string();
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  if (found.size() < 2 || std::equal(found.begin(), found.end(), ending.begin(), ending.end(), same)) return;
  throw ConfigError("command line: --output: " + path + ": expected a name that ends in " + ending +
                    ", which is what is written");
}

std::string check_not_empty(const std::string& text) { return text.empty() ? "expected a path, found nothing" : ""; }

std::string check_output(const std::string& text) {
  return text == "-" ? found("the name of a file to write (./- for one of that name)", text) : check_not_empty(text);
}

}  // namespace axial::app
