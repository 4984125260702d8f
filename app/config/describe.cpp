#include "app/config/describe.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/suggest.h"
#include "app/config/value.h"
#include "app/config/yaml_tree.h"

namespace axial::app {
namespace {

std::string limits_of(const Key& key) { return print_limits(key) + (key.unit.empty() ? "" : " (" + key.unit + ")"); }

std::string joined(const std::vector<std::string>& names, const std::string& between) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : between) + name;
  return text;
}

std::string explain_key(const Key& key, const Config& config) {
  std::string text = key.path + "\n" + wrap(key.help, "  ");
  const auto row = [&](std::string name, const std::string& value) {
    name.resize(12, ' ');
    if (!value.empty()) text += wrap(value, "  " + name);
  };
  row("expected", print_limits(key));
  row("unit", key.unit);
  row("default", key.preset);
  row("value", print_value(key, config));
  row("flag", joined(key.flags, ", ") + (key.flags.empty() ? "" : " VALUE"));
  std::string others = key.other_names;
  std::replace(others.begin(), others.end(), ' ', ',');
  for (std::size_t i = 0; (i = others.find(',', i)) != std::string::npos; i += 2) others.replace(i, 1, ", ");
  row("elsewhere", others.empty() ? "" : "called " + others + " in other programs; here that name is not taken");
  row("on resume", key.may_change_on_resume ? "may change" : "stays as the run has it");
  row("on eval",
      key.may_change_on_eval ? "may change (and for predict, report, explain)" : "stays as the model has it");
  row("write", key.path + "=" + print_value(key, config));
  row("in a file", key.section() + ": {" + key.leaf() + ": " + print_value(key, config) + "}");
  return text;
}

// In a cell of a table: | would end it, and <...> would be HTML.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '|' ? "\\|" : c == '<' ? "&lt;" : std::string(1, c);
  return result;
}

}  // namespace

std::string wrap(const std::string& text, const std::string& head, std::size_t width) {
  std::istringstream words(text);
  std::string result, line = head;
  for (std::string word; words >> word;) {
    const bool first = line.size() <= head.size();
    if (!first && line.size() + 1 + word.size() > width) {
      result += line + "\n";
      line = std::string(head.size(), ' ') + word;
    } else {
      line += (first ? "" : " ") + word;
    }
  }
  return result + line + "\n";
}

std::string describe_keys(const Config& config, const std::string& only) {
  std::string text;
  for (const Key& key : schema()) {
    if (key.path.rfind(only, 0) != 0) continue;
    const std::string value = print_value(key, config);
    text += key.path + " = " + value + (value == key.preset ? "  (default)" : "  (default " + key.preset + ")") +
            "\n" + wrap(limits_of(key) + (key.may_change_on_resume ? "; may change on resume" : ""), "    ") +
            wrap(key.help, "    ");
  }
  return text;
}

std::string explain(const std::string& name, const Config& config) {
  if (const Key* key = find_key(name); key != nullptr) return explain_key(*key, config);
  std::string found;
  for (const Key& key : schema()) {
    if (key.section() == name) return describe_keys(config, name + ".");
    if (key.leaf() == name) found += (found.empty() ? "" : "\n") + explain_key(key, config);
  }
  if (!found.empty()) return found;
  const std::size_t dot = name.find('.');
  const std::string section = dot == std::string::npos ? "" : name.substr(0, dot);
  throw ConfigError("command line: --explain: " + excerpt(name) + ": unknown key; " +
                    suggest_key(section, dot == std::string::npos ? name : name.substr(dot + 1)));
}

std::string keys_as_markdown() {
  std::string text, section;
  for (const Key& key : schema()) {
    if (key.section() != section) {
      section = key.section();
      text += "\n### " + section + "\n\n| key | default | expected | meaning |\n|---|---|---|---|\n";
    }
    text += "| `" + key.path + "`" + (key.flags.empty() ? "" : " (`" + joined(key.flags, "`, `") + "`)") + " | `" +
            cell(key.preset) + "` | " + cell(limits_of(key)) + " | " + cell(key.help) +
            (key.may_change_on_resume ? "; may change on resume" : "") + " |\n";
  }
  return text.substr(1);
}

}  // namespace axial::app
