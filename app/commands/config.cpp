#include <iostream>

#include "app/commands/commands.h"
#include "app/config/describe.h"
#include "app/config/load.h"

namespace axial::app {

int run_config(const ConfigArguments& a) {
  const Config config = load_config(a.configs, a.overrides);
  if (a.markdown) {
    std::cout << keys_as_markdown();
  } else if (!a.explain.empty()) {
    std::cout << explain(a.explain, config);
  } else {
    std::cout << (a.keys ? describe_keys(config) : to_yaml(config, /*with_help=*/true));
  }
  std::cout << std::flush;
  return 0;
}

}  // namespace axial::app
