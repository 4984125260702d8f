#include "app/config/value.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <type_traits>

#include "app/config/suggest.h"

namespace axial::app {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The shortest text that reads back to the same value; always with a point before an exponent, so that
// YAML 1.1 readers, too, take it for a number.
std::string print_real(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  const auto exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

std::string print_text(const std::string& text) {
  static const char* const kWords[] = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};
  std::string lower = text;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  static const std::string kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  const bool plain = text.find_first_not_of(kPlain) == std::string::npos && !text.empty() && !is_digit(text[0]) &&
                     text[0] != '-' && text[0] != '.' &&
                     std::find(std::begin(kWords), std::end(kWords), lower) == std::end(kWords);
  if (plain || (text.rfind("cuda:", 0) == 0 && text.size() > 5 && is_digit(text[5]))) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

// Valid UTF-8 without control characters: it goes into YAML, JSON and error messages as it is.
bool is_printable(const std::string& text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(k < text.size() ? text[k] : 0); };
    const unsigned char first = byte(i);
    if (first < 0x80) {
      if (first < 0x20 || first == 0x7f) return false;
      ++i;
      continue;
    }
    const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4) return false;
    std::uint32_t code = first & (0x7fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
      code = code << 6 | (byte(i + k) & 0x3fu);
    }
    if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000) || code > 0x10ffff) return false;
    if (code < 0xa0 || (code >= 0xd800 && code <= 0xdfff) || code == 0xfeff || code >= 0xfffe) {
      // C1 controls, surrogates, byte-order marks and non-characters: YAML readers stumble over them
      if (code < 0x10000) return false;
    }
    i += length;
  }
  return true;
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "no value";
    case Node::Kind::kScalar:
      if (!node.quoted && node.text.empty()) return "nothing";  // data.dir= on a command line
      return node.quoted ? "the text \"" + excerpt(node.text) + "\"" : excerpt(node.text);
    case Node::Kind::kList:
      return "a list of " + std::to_string(node.items.size());
    case Node::Kind::kMap:
      break;
  }
  return "a map";
}

// Each returns "" or what was found instead, as a whole phrase after "found ".
using Found = std::string;

Found read(const Node& node, const Limits&, bool* out) {
  if (node.kind != Node::Kind::kScalar) return describe(node);
  if (node.quoted || (node.text != "true" && node.text != "false"))
    return describe(node) + meant_value(node.text, {"true", "false"});
  *out = node.text == "true";
  return {};
}

Found read(const Node& node, const Limits& limits, std::int64_t* out) {
  bool negative = false, overflow = false;
  std::uint64_t magnitude = 0;
  if (node.kind != Node::Kind::kScalar || node.quoted || !parse_integer(node.text, &negative, &magnitude, &overflow))
    return describe(node);
  if (overflow || magnitude > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return describe(node);
  const std::int64_t value = negative ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);
  if (const auto* range = std::get_if<IntegerRange>(&limits.each)) {
    if (value < range->low || value > range->high) return describe(node);
  }
  *out = value;
  return {};
}

Found read(const Node& node, const Limits&, std::uint64_t* out) {
  bool negative = false, overflow = false;
  std::uint64_t magnitude = 0;
  if (node.kind != Node::Kind::kScalar || node.quoted || !parse_integer(node.text, &negative, &magnitude, &overflow))
    return describe(node);
  if (overflow || (negative && magnitude != 0)) return describe(node);
  *out = magnitude;
  return {};
}

Found read(const Node& node, const Limits& limits, double* out) {
  double value = 0;
  bool overflow = false;
  if (node.kind != Node::Kind::kScalar || node.quoted || !parse_real(node.text, &value, &overflow))
    return describe(node);
  if (overflow) return describe(node) + " (beyond what a double holds)";
  if (const auto* range = std::get_if<RealRange>(&limits.each)) {
    const bool low = range->low_open ? value > range->low : value >= range->low;
    const bool high = range->high_open ? value < range->high : value <= range->high;
    if (!low || !high) return describe(node);
  }
  *out = value + 0.0;  // -0 is 0
  return {};
}

Found read(const Node& node, const Limits& limits, std::string* out) {
  if (node.kind != Node::Kind::kScalar) return describe(node);
  if (!is_printable(node.text)) return "text with control characters or not in UTF-8";
  if (const auto* choice = std::get_if<Choice>(&limits.each)) {
    if (std::find(choice->names.begin(), choice->names.end(), node.text) == choice->names.end())
      return describe(node) + meant_value(node.text, choice->names);
  } else if (const auto* rule = std::get_if<Rule>(&limits.each)) {
    if (!rule->accepts(node.text)) return describe(node) + meant_value(node.text, rule->names);
  }
  *out = node.text;
  return {};
}

template <class T>
Found read(const Node& node, const Limits& limits, std::vector<T>* out) {
  std::vector<T> values;
  const auto add = [&](const Node& entry) -> Found {
    T value{};
    Found found = read(entry, limits, &value);
    if (found.empty()) values.push_back(value);
    return found;
  };
  if (node.kind == Node::Kind::kList) {
    for (const NodePtr& item : node.items) {
      if (Found found = add(*item); !found.empty()) return found + " as entry " + std::to_string(values.size() + 1);
    }
  } else {
    // a single value stands for a list of one
    if (Found found = add(node); !found.empty()) {
      const bool bare = node.kind == Node::Kind::kScalar && node.text.find(',') != std::string::npos;
      return bare ? found + " (a list is written [" + excerpt(node.text) + "])" : found;
    }
  }
  if (values.size() < limits.least || values.size() > limits.most)
    return std::to_string(values.size()) + (values.size() == 1 ? " entry" : " entries");
  *out = std::move(values);
  return {};
}

std::string print_one(bool value) { return value ? "true" : "false"; }
std::string print_one(std::int64_t value) { return std::to_string(value); }
std::string print_one(std::uint64_t value) { return std::to_string(value); }
std::string print_one(double value) { return print_real(value); }
std::string print_one(const std::string& value) { return print_text(value); }
template <class T>
std::string print_one(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + print_one(value);
  return text + "]";
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

bool parse_integer(const std::string& text, bool* negative, std::uint64_t* magnitude, bool* overflow) {
  const std::size_t start = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  if (text.size() == start || !std::all_of(text.begin() + static_cast<std::ptrdiff_t>(start), text.end(), is_digit))
    return false;
  if (text[start] == '0' && text.size() > start + 1) return false;  // 010: eight to some readers, ten to others
  const auto result = std::from_chars(text.data() + start, text.data() + text.size(), *magnitude);
  *negative = text[0] == '-';
  *overflow = result.ec == std::errc::result_out_of_range;
  return true;
}

bool parse_real(const std::string& text, double* value, bool* overflow) {
  std::size_t i = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const std::size_t begin = i;
  const auto digits = [&] {
    const std::size_t from = i;
    while (i < text.size() && is_digit(text[i])) ++i;
    return i - from;
  };
  const std::size_t whole = digits();
  if (whole > 1 && text[begin] == '0') return false;
  std::size_t fraction = 0;
  if (i < text.size() && text[i] == '.') {
    ++i;
    fraction = digits();
  }
  if (whole + fraction == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    if (digits() == 0) return false;
  }
  if (i != text.size()) return false;
  // from_chars takes no leading plus
  const std::size_t skip = text[0] == '+' ? 1 : 0;
  const auto result = std::from_chars(text.data() + skip, text.data() + text.size(), *value);
  *overflow = result.ec == std::errc::result_out_of_range;
  return true;
}

std::string assign(const Key& key, const Node& value, Config& config) {
  const std::string found =
      std::visit([&](auto* field) { return read(value, key.limits, field); }, key.field(config));
  return found.empty() ? "" : "expected " + print_limits(key) + ", found " + found;
}

std::string print_value(const Key& key, const Config& config) {
  // The table binds fields of a mutable Config; nothing is written here.
  return std::visit([](const auto* field) { return print_one(*field); }, key.field(const_cast<Config&>(config)));
}

std::string print_limits(const Key& key) {
  Config scratch{};
  const Field field = key.field(scratch);
  const bool whole = std::holds_alternative<std::int64_t*>(field) || std::holds_alternative<std::uint64_t*>(field) ||
                     std::holds_alternative<std::vector<std::int64_t>*>(field);
  const bool is_list = std::holds_alternative<std::vector<std::int64_t>*>(field) ||
                       std::holds_alternative<std::vector<double>*>(field);
  std::string range = std::visit(
      Overloaded{
          [&](std::monostate) -> std::string {
            return std::holds_alternative<std::uint64_t*>(field)
                       ? " in 0.." + std::to_string(std::numeric_limits<std::uint64_t>::max())
                       : "";
          },
          [](const IntegerRange& r) { return " in " + std::to_string(r.low) + ".." + std::to_string(r.high); },
          [](const RealRange& r) {
            return std::string(" in ") + (r.low_open ? "(" : "[") + print_real(r.low) + ", " + print_real(r.high) +
                   (r.high_open ? ")" : "]");
          },
          [](const Choice& c) { return "one of " + join(c.names); },
          [](const Rule& r) { return std::string(r.text); },
      },
      key.limits.each);
  if (is_list) {
    const Limits& limits = key.limits;
    const std::string count = limits.least == limits.most
                                  ? std::to_string(limits.least)
                                  : std::to_string(limits.least) + " to " + std::to_string(limits.most);
    return "a list of " + count + (whole ? " integers" : " numbers") + (range.empty() ? "" : ", each" + range);
  }
  if (std::holds_alternative<bool*>(field)) return "true or false";
  if (std::holds_alternative<std::string*>(field)) return range.empty() ? "text" : range;
  return (whole ? "an integer" : "a number") + range;
}

}  // namespace axial::app
