#include "app/commands/result.h"

#include <cmath>
#include <iostream>

namespace axial::app {

Json rounded(double value, int decimals) {
  if (!std::isfinite(value)) return nullptr;
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

void print_result(const Json& line) {
  std::cout << line.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
}

}  // namespace axial::app
