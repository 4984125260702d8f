// From YAML files and key=value arguments to a checked Config, and back to YAML.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "app/config/config.h"

namespace axial::app {

// What the user wrote is wrong: one line "file:line: model.dim: expected ..., found ..." (or "command
// line: ..."). Exit code 2.
struct ConfigError : std::runtime_error {
  explicit ConfigError(const std::string& message);  // control characters become spaces: keys may hold any
};

// Defaults, then each file (find_config; "-" is standard input) in order, then the overrides "key.sub=value" in order; later wins. A file that says
// `base: other.yaml` (relative to itself) stands on that file, which is read just before it. A key that is given
// twice on the command line takes the last value, so that a script's arguments can be added to. The value is YAML
// ("model.dim=[64, 128]"), except that text is taken as it stands. Throws ConfigError for the first thing that is
// wrong.
Config load_config(const std::vector<std::string>& files, const std::vector<std::string>& overrides);

// From text that was printed by to_yaml (a checkpoint's metadata); `origin` stands for the file name in errors.
Config parse_config(const std::string& yaml, const std::string& origin);

// `base` (a checkpoint's configuration) with files and overrides on top.
Config override_config(const Config& base, const std::vector<std::string>& files,
                       const std::vector<std::string>& overrides);

// The complete effective configuration; loads back to the same Config. `with_help`: what each key means stands
// behind it as a comment.
std::string to_yaml(const Config& config, bool with_help = false);

// "section.name=value" with a section that there is: what an argument that could also be a file's name is taken for.
bool is_override(const std::string& argument);

// The keys (full paths) whose values differ.
std::vector<std::string> differing_keys(const Config& a, const Config& b);
// "optim.lr is 0.001, not 0.1; ... and 3 more", of keys that the run or model in `kept` has as they are.
std::string describe_changes(const std::vector<std::string>& keys, const Config& kept, const Config& wanted);

}  // namespace axial::app
