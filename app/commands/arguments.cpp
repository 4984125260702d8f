#include "app/commands/arguments.h"

#include <cctype>

#include "app/config/load.h"
#include "app/config/schema.h"

namespace axial::app {
namespace {

// "optim.lr" for "--lr"; "" for what is no key's flag.
std::string key_of_flag(const std::string& flag) {
  for (const Key& key : schema()) {
    for (const std::string& own : key.flags) {
      if (own == flag) return key.path;
    }
  }
  return {};
}

// A value, or the next option? Numbers below zero are values (and then out of range, which is said).
bool is_option(const std::string& text) {
  return text.size() > 1 && text[0] == '-' && std::isdigit(static_cast<unsigned char>(text[1])) == 0 &&
         text[1] != '.';
}

}  // namespace

std::vector<std::string> plain_arguments(int argc, char** argv) {
  std::vector<std::string> plain;
  const std::string command = argc > 1 ? argv[1] : "";
  const bool has_keys = command == "train" || command == "config";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const bool last = i + 1 >= argc;
    const std::string next = last ? "-" : argv[i + 1];
    if (argument == "--resume=")
      throw ConfigError("command line: --resume=: expected a run's folder or a checkpoint");
    if (argument == "--resume" || argument == "--explain") {
      // An optional value, which CLI11 would take from whatever follows: --resume key=value would lose the override.
      const bool alone = next.empty() || next[0] == '-' || next.find('=') != std::string::npos;
      plain.push_back(!alone ? argument + "=" + next : argument == "--resume" ? "--resume-newest" : "--keys");
      i += alone ? 0 : 1;
      continue;
    }
    const std::string key = has_keys ? key_of_flag(name) : "";
    if (key.empty()) {
      plain.push_back(argument);
    } else if (name == argument && (last || is_option(next))) {
      throw ConfigError("command line: " + name + ": expected a value after it");
    } else if (name != argument) {
      plain.push_back(key + argument.substr(name.size()));
    } else {
      plain.push_back(key + "=" + next);
      ++i;
    }
  }
  return plain;
}

}  // namespace axial::app
