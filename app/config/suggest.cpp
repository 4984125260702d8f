#include "app/config/suggest.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "app/config/schema.h"

namespace axial::app {
namespace {

std::string normalised(const std::string& text) {
  std::string result;
  for (const char c : text)
    result += c == '-' || c == ' ' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return result;
}

// Insertions, deletions, substitutions and swaps of neighbours.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> result;
  for (std::string word; stream >> word;) result.push_back(word);
  return result;
}

// What other programs call values of ours, and how people abbreviate them.
constexpr struct {
  const char *other, *ours;
} kOtherValues[] = {{"bf16", "bfloat16"}, {"fp16", "float16"},   {"f16", "float16"},   {"half", "float16"},
                    {"fp32", "float32"},  {"f32", "float32"},    {"float", "float32"}, {"single", "float32"},
                    {"fp64", "float64"},  {"double", "float64"}, {"gpu", "cuda"},      {"adam", "adamw"},
                    {"cos", "cosine"},    {"accuracy", "top1"},  {"acc", "top1"},      {"val_loss", "loss"},
                    {"yes", "true"},      {"on", "true"},        {"1", "true"},        {"no", "false"},
                    {"off", "false"},     {"0", "false"},        {"json", "jsonl"}};

std::string alternatives(const std::vector<std::string>& paths, const std::string& given = "") {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : " or ") + path + given;
  return text;
}

std::string in_its_section(const Key& key) {
  return "write it in its section, as " + key.section() + ": {" + key.leaf() + ": ...}";
}

// More than a third of the letters changed is another word, not a misspelling.
bool is_misspelling(std::size_t changes, const std::string& name) {
  return 3 * changes <= std::max<std::size_t>(name.size(), 3);
}

// Where other things differ, too, the words must be nearer: short ones have neighbours that mean something else.
bool is_slip(std::size_t changes, const std::string& name, const std::string& other) {
  return 6 * changes <= std::max(name.size(), other.size());
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& names) {
  const std::string given = normalised(name).substr(0, 64);
  std::string nearest;
  std::size_t best = static_cast<std::size_t>(-1);
  for (const std::string& other : names) {
    const std::size_t changes = distance(given, normalised(other));
    if (changes < best) best = changes, nearest = other;
  }
  return nearest.empty() || !is_misspelling(best, given) ? "" : nearest;
}

std::string meant_value(const std::string& value, const std::vector<std::string>& names) {
  const auto is_there = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::string name = normalised(value).substr(0, 64), number;
  if (is_there("cuda")) {  // a device may have a number: gpu1, gpu:1, cuda1
    const std::size_t letters = name.find_first_of(":0123456789");
    if (letters != std::string::npos) {
      number = name.substr(name[letters] == ':' ? letters + 1 : letters);
      name.resize(letters);
    }
    if (number.size() > 1) number.erase(0, std::min(number.find_first_not_of('0'), number.size() - 1));
    const bool good = number.size() <= 2 && number.find_first_not_of("0123456789") == std::string::npos;
    number = good && !number.empty() ? ":" + number : "";
  }
  std::string meant = nearest_name(name, names);
  for (const auto& [other, ours] : kOtherValues) {
    if (name == other && is_there(ours)) meant = ours;
  }
  if (meant.empty()) return "";
  return "; did you mean " + meant + (meant == "cuda" ? number : "") + "?";
}

std::string suggest_key(const std::string& section, const std::string& unknown, const std::string& given) {
  const std::string meant = meant_key(section, unknown, given);
  return meant.empty() ? "axial config --keys lists all of them" : meant;
}

std::string meant_key(const std::string& section, const std::string& unknown, const std::string& given) {
  // A name longer than any key is no misspelling; the table of distances stays small.
  const std::string leaf = normalised(unknown).substr(0, 64);
  if (const Key* key = find_key(normalised(unknown)); key != nullptr && section.empty())
    return given.empty() ? in_its_section(*key) : "write " + key->path + given;

  std::vector<std::string> elsewhere, renamed;
  for (const Key& key : schema()) {
    if (key.leaf() == leaf) elsewhere.push_back(key.path);
    const std::vector<std::string> others = words(key.other_names);
    if (std::find(others.begin(), others.end(), leaf) != others.end()) renamed.push_back(key.path);
  }
  if (!elsewhere.empty()) {
    const bool only_case = std::find(elsewhere.begin(), elsewhere.end(), section + "." + leaf) != elsewhere.end();
    if (only_case) return "did you mean " + section + "." + leaf + "?";
    if (!given.empty()) return "write " + alternatives(elsewhere, given);
    if (section.empty() && elsewhere.size() == 1) return in_its_section(*find_key(elsewhere[0]));
    return (section.empty() ? "it belongs in a section: " : "it belongs in another section: ") +
           alternatives(elsewhere);
  }
  if (!renamed.empty()) return "here it is called " + alternatives(renamed);

  std::string nearest;
  std::size_t best = static_cast<std::size_t>(-1);
  for (const Key& key : schema()) {
    const bool other_section = !section.empty() && key.section() != section;
    std::vector<std::string> names = words(key.other_names);
    names.push_back(key.leaf());
    for (const std::string& name : names) {
      // other sections lose ties, and another program's name loses to our own
      const std::size_t typos = distance(leaf, name);
      const bool own = name == key.leaf() && !other_section;
      if (!(own ? is_misspelling(typos, leaf) : is_slip(typos, leaf, name))) continue;
      const std::size_t d = 4 * typos + (key.section() == section ? 0 : 3) + (name == key.leaf() ? 0 : 1);
      if (d < best) {
        best = d;
        nearest = key.path;
      }
    }
  }
  return nearest.empty() ? "" : "did you mean " + nearest + "?";
}

}  // namespace axial::app
