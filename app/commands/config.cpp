#include <iostream>

#include "app/commands/commands.h"
#include "app/config/load.h"

namespace axial::app {

int run_config(const ConfigArguments& a) {
  std::cout << (a.keys ? describe_keys() : to_yaml(load_config(a.configs, a.overrides), /*with_help=*/true)) << std::flush;
  return 0;
}

}  // namespace axial::app
