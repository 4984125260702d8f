#include "app/config/load.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/config/check.h"
#include "app/config/schema.h"
#include "app/config/shipped.h"
#include "app/config/suggest.h"
#include "app/config/value.h"
#include "app/config/yaml_tree.h"

namespace axial::app {
namespace {

constexpr std::size_t kMaxFileSize = 1 << 20;  // nobody writes that much by hand
constexpr const char* kStandardInput = "standard input";  // what -c - is called

bool is_section(const std::string& name) {
  for (const Key& key : schema()) {
    if (key.section() == name) return true;
  }
  return false;
}

// A pipe that is open already (-c <(...), -c /dev/stdin) has a writer; one that has a name in a folder may never get
// one, and opening it would wait for ever.
bool is_open_pipe(const std::string& path, mode_t mode) {
  std::error_code unnamed;
  (void)std::filesystem::canonical(path, unnamed);  // /proc/.../pipe:[1234] is the name of nothing
  return S_ISFIFO(mode) && unnamed;
}

// A file that cannot be opened or read, in distinction from what stands in one.
struct Unreadable : ConfigError {
  using ConfigError::ConfigError;
};

// Where `path` was looked for, and a file that may have been meant.
std::string nowhere(const std::string& path) {
  std::string text = "no such file";
  std::vector<std::string> near = {path + ".yaml"};
  if (path.find('/') == std::string::npos) {
    const std::string folder = shipped_configs();
    text += " in this folder" + (folder.empty() ? "" : ", nor one of that name in " + folder);
    near.insert(near.end(), {"configs/" + path, "configs/" + path + ".yaml"});
  }
  std::error_code ignored;
  for (const std::string& other : near) {
    if (std::filesystem::is_regular_file(other, ignored)) return text + "; there is " + other;
  }
  return text;
}

// Read by hand: a directory opens as a stream, and a pipe has no size.
std::string read_text(const std::string& path) {
  const auto fail = [&](const std::string& what) { throw ConfigError(path + ": " + what); };
  const auto unreadable = [&](int error) {
    throw Unreadable(path + ": " +
                     (error == ENOENT ? nowhere(path) : "cannot be read: " + std::string(std::strerror(error))));
  };
  const bool standard_input = path == kStandardInput;
  struct stat status {};
  if (!standard_input && ::stat(path.c_str(), &status) != 0) unreadable(errno);
  if (!standard_input && !S_ISREG(status.st_mode) && !is_open_pipe(path, status.st_mode)) {
    fail(std::string("is ") + (S_ISDIR(status.st_mode)    ? "a folder"
                               : S_ISFIFO(status.st_mode) ? "a pipe"
                                                          : "a device or a socket") +
         ", expected a configuration file");
  }
  const int file = standard_input ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) unreadable(errno);
  std::string text;
  char buffer[65536];
  while (text.size() <= kMaxFileSize) {
    const ssize_t count = ::read(file, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      ::close(file);
      unreadable(error);
    }
    if (count == 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(file);
  if (text.size() > kMaxFileSize) fail("expected a configuration, found more than 1 MiB");
  if (text.find('\0') != std::string::npos) fail("expected YAML text, found binary data");
  return text;
}

// More brackets open than close.
bool is_left_open(const std::string& text) {
  const auto of = [&](char a, char b) {
    return std::count(text.begin(), text.end(), a) + std::count(text.begin(), text.end(), b);
  };
  return of('[', '{') > of(']', '}');
}

constexpr std::size_t kMaxBases = 100;  // files under one: more is a mistake, or meant to take for ever

// How errors and comparisons name a file: "a/../b.yaml" is b.yaml.
std::string identity(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(path, ignored);
  return whole.empty() ? path : whole.string();
}

class Loader {
 public:
  Loader() {
    for (const Key& key : schema()) {
      const std::string error = assign(key, *parse_yaml(key.preset, {"default of " + key.path, false}), config_);
      if (!error.empty()) throw ConfigError("default of " + key.path + ": " + error);
    }
  }

  // The file's base first, then the file: later wins.
  void file(const std::string& path) {
    open_.push_back(path);
    text(read_text(path), path);
    open_.pop_back();
  }

  void text(const std::string& yaml, const std::string& name) {
    const Origin origin{name};
    const NodePtr root = parse_yaml(yaml, origin);
    if (root == nullptr || root->kind == Node::Kind::kNull)
      throw ConfigError(name + ": expected sections (model, data, ...), found an empty file");
    if (root->kind != Node::Kind::kMap)
      throw ConfigError(name + ": expected sections (model, data, ...) at the top level, found " +
                        (root->kind == Node::Kind::kList ? "a list" : "a single value"));
    for (const Entry& entry : root->entries) {
      if (entry.key == "base" && !open_.empty()) base(*entry.value, origin.at(entry.line) + ": base: ");
    }
    for (const Entry& section : root->entries) {
      if (section.key == "base" && !open_.empty()) continue;
      const std::string at = origin.at(section.line) + ": " + excerpt(section.key) + ": ";
      if (!is_section(section.key)) unknown(at, "", section.key, *section.value);
      if (section.value->kind != Node::Kind::kMap)
        throw ConfigError(
            at + "expected a section with keys, found " +
            (section.value->kind == Node::Kind::kNull ? "nothing; give it keys or remove it" : "a value"));
      for (const Entry& entry : section.value->entries)
        set_in(section.key, entry.key, *entry.value, origin.at(entry.line));
    }
  }

  void override_with(const std::string& argument) {
    const Origin origin{"command line", false};
    const std::size_t equals = argument.find('=');
    if (equals == std::string::npos || equals == 0)
      throw ConfigError("command line: " + excerpt(argument) +
                        ": expected key=value, such as optim.lr=1e-3 (a file is given with -c FILE)");
    const std::string path = argument.substr(0, equals);
    const std::string value = argument.substr(equals + 1);
    const std::size_t dot = path.find('.');
    const std::string section = dot == std::string::npos ? "" : path.substr(0, dot);
    const std::string leaf = dot == std::string::npos ? path : path.substr(dot + 1);
    if (section.empty() && is_section(leaf))
      throw ConfigError("command line: " + path + ": expected a key, found a section; write " + leaf + ".key=value");
    const Key* key = section.empty() ? nullptr : find_key(path);
    if (key == nullptr) {
      throw ConfigError("command line: " + excerpt(path) + ": unknown key; " +
                        suggest_key(section, leaf, "=" + excerpt(value)));
    }
    set(*key, *override_value(*key, value, origin), origin.name);
  }

  Config finish() const {
    check_together(config_, [this](const std::string& path) {
      const auto found = set_at_.find(path);
      return found == set_at_.end() ? std::string() : found->second;
    });
    return config_;
  }

 private:
  // `base: other.yaml`, relative to the file that says so.
  void base(const Node& value, const std::string& at) {
    if (value.kind != Node::Kind::kScalar || value.text.empty())
      throw ConfigError(at + "expected the path of one configuration file");
    const std::string path = (std::filesystem::path(open_.back()).parent_path() / value.text).string();
    std::string chain;
    for (const std::string& above : open_) {
      const bool again = identity(above) == identity(path);
      if (again || !chain.empty()) chain += above + " -> ";
    }
    if (!chain.empty()) throw ConfigError(at + "a configuration cannot be its own base: " + chain + path);
    if (++bases_ > kMaxBases) throw ConfigError(at + "more than " + std::to_string(kMaxBases) + " bases in all");
    try {
      file(path);
    } catch (const Unreadable& error) {
      throw ConfigError(at + error.what());
    }
  }

  [[noreturn]] static void unknown(const std::string& at, const std::string& section, const std::string& leaf,
                                   const Node& value) {
    // A map at the top level was meant as a section.
    if (section.empty() && value.kind == Node::Kind::kMap) {
      std::string names;
      for (const Key& key : schema()) {
        if (names.find(key.section()) == std::string::npos) names += (names.empty() ? "" : ", ") + key.section();
      }
      throw ConfigError(at + "unknown section; there are " + names);
    }
    throw ConfigError(at + "unknown key; " + suggest_key(section, leaf));
  }

  // Text is taken as it stands (the shell has dealt with quotes; paths hold what YAML finds special);
  // everything else is YAML.
  static NodePtr override_value(const Key& key, const std::string& value, const Origin& origin) {
    Config scratch{};
    const bool is_text = std::holds_alternative<std::string*>(key.field(scratch));
    const bool quoted = !value.empty() && (value[0] == '"' || value[0] == '\'');
    if (is_text && !quoted) {
      auto node = std::make_shared<Node>();
      node->kind = Node::Kind::kScalar;
      node->text = value;
      return node;
    }
    NodePtr node;
    try {
      node = parse_yaml(value, origin);
    } catch (const ConfigError& error) {
      const std::string message = error.what(), reason = message.substr(origin.name.size() + 2);
      throw ConfigError(origin.name + ": " + key.path + ": expected " + print_limits(key) + ", found " +
                        excerpt(value) + (is_left_open(value) ? " (is a bracket not closed?)" : "; " + reason));
    }
    return node != nullptr ? node : std::make_shared<Node>();
  }

  void set_in(const std::string& section, const std::string& leaf, const Node& value, const std::string& where) {
    const std::string path = section + "." + leaf;
    const Key* key = find_key(path);
    if (key == nullptr) unknown(where + ": " + excerpt(path) + ": ", section, leaf, value);
    set(*key, value, where);
  }

  void set(const Key& key, const Node& value, const std::string& where) {
    const std::string error = assign(key, value, config_);
    if (!error.empty()) throw ConfigError(where + ": " + key.path + ": " + error);
    set_at_[key.path] = where;
  }

  Config config_{};
  std::map<std::string, std::string> set_at_;
  std::vector<std::string> open_;  // the files being read, each the base of the one before
  std::size_t bases_ = 0;
};

}  // namespace

Config load_config(const std::vector<std::string>& files, const std::vector<std::string>& overrides) {
  Loader loader;
  for (const std::string& file : files) loader.file(file == "-" ? kStandardInput : find_config(file));
  for (const std::string& argument : overrides) loader.override_with(argument);
  return loader.finish();
}

Config override_config(const Config& base, const std::vector<std::string>& files,
                       const std::vector<std::string>& overrides) {
  Loader loader;
  loader.text(to_yaml(base), "checkpoint");
  for (const std::string& file : files) loader.file(file == "-" ? kStandardInput : find_config(file));
  for (const std::string& argument : overrides) loader.override_with(argument);
  return loader.finish();
}

Config parse_config(const std::string& yaml, const std::string& origin) {
  Loader loader;
  loader.text(yaml, origin);
  return loader.finish();
}

std::string to_yaml(const Config& config, bool with_help) {
  std::string text, section;
  for (const Key& key : schema()) {
    if (key.section() != section) {
      section = key.section();
      text += (text.empty() ? "" : "\n") + section + ":\n";
    }
    std::string line = "  " + key.leaf() + ": " + print_value(key, config);
    if (with_help) {
      line.resize(std::max<std::size_t>(line.size(), 32), ' ');
      line += "  # " + key.help + (key.unit.empty() ? "" : " [" + key.unit + "]");
    }
    text += line + "\n";
  }
  return text;
}

bool is_override(const std::string& argument) {
  const std::size_t dot = argument.find('.');
  return dot != std::string::npos && argument.find('=', dot) != std::string::npos &&
         is_section(argument.substr(0, dot));
}

std::vector<std::string> differing_keys(const Config& a, const Config& b) {
  // The printed value is exact, so that comparing text compares values.
  std::vector<std::string> keys;
  for (const Key& key : schema()) {
    if (print_value(key, a) != print_value(key, b)) keys.push_back(key.path);
  }
  return keys;
}

std::string describe_changes(const std::vector<std::string>& keys, const Config& kept, const Config& wanted) {
  constexpr std::size_t kShown = 12;  // a line that a terminal still shows
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, keys.size()); ++i) {
    const Key& key = *find_key(keys[i]);
    text += (i > 0 ? "; " : "") + key.path + " is " + excerpt(print_value(key, kept)) + ", not " +
            excerpt(print_value(key, wanted));
  }
  if (keys.size() > kShown) text += "; and " + std::to_string(keys.size() - kShown) + " more";
  return text;
}

}  // namespace axial::app
