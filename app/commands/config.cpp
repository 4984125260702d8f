#include <iostream>

#include "app/commands/commands.h"
#include "app/config/load.h"

namespace axial::app {

int run_config(const ConfigArguments& a) {
  const Config config = load_config(a.configs, a.overrides);
  std::cout << (a.keys ? describe_keys(config) : to_yaml(config, /*with_help=*/true)) << std::flush;
  return 0;
}

}  // namespace axial::app
