// A configuration file; then the same lines as arguments. What is accepted prints as what reads back.
#include <sstream>

#include "app/config/load.h"
#include "tests/fuzz/input.h"

namespace {

void reads_back(const axial::app::Config& config) {
  const std::string text = axial::app::to_yaml(config);
  axial::fuzz::hold(axial::app::to_yaml(axial::app::parse_config(text, "printed")) == text,
                    "a printed configuration reads back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace axial;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    reads_back(app::parse_config(text, "file"));
  } catch (const app::ConfigError& error) {
    fuzz::one_line(error);
  }
  std::vector<std::string> arguments;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) arguments.push_back(line);
  try {
    reads_back(app::load_config({}, arguments));
  } catch (const app::ConfigError& error) {
    fuzz::one_line(error);
  }
  return 0;
}
