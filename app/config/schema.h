// The one description of every configuration key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "app/config/config.h"

namespace axial::app {

using Field = std::variant<bool*, std::int64_t*, std::uint64_t*, double*, std::string*, std::vector<std::int64_t>*,
                           std::vector<double>*>;

struct IntegerRange {
  std::int64_t low, high;
};

struct RealRange {
  double low, high;
  bool low_open = false, high_open = false;  // the bound itself is not allowed
};

struct Choice {
  std::vector<std::string> names;
};

// Text that a rule accepts; `text` completes "expected ...".
struct Rule {
  bool (*accepts)(const std::string&);
  const char* text;
  std::vector<std::string> names = {};  // of well-known values, to suggest them
};

struct Limits {
  std::variant<std::monostate, IntegerRange, RealRange, Choice, Rule> each;  // of the value, or of each entry
  std::size_t least = 1, most = 1;                                           // entries of a list
};

struct Key {
  std::string path;         // "optim.lr"
  Field (*field)(Config&);  // where the value lives
  std::string preset;       // default, as YAML
  Limits limits;
  std::string unit;  // "" where a number is just a number
  std::string help;
  std::string other_names;  // what other programs call it, separated by spaces: for suggestions only
  bool may_change_on_resume = false,
       may_change_on_eval = false;  // of a run that is resumed, of a model that is taken
  std::vector<std::string> flags = {};  // of `axial train` and `axial config`, for key=value: "--lr"
  std::string section() const { return path.substr(0, path.find('.')); }
  std::string leaf() const { return path.substr(path.find('.') + 1); }
};

// In the order in which they are printed; the keys of a section stand together.
const std::vector<Key>& schema();

const Key* find_key(const std::string& path);  // nullptr where there is none

}  // namespace axial::app
