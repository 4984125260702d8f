// A sample of times in a few numbers.
#pragma once

#include <algorithm>
#include <vector>

namespace axial::app::bench {

struct Timing {
  double median = 0, p10 = 0, p90 = 0, least = 0;  // ms
  // Half the span of the middle 80 %, in percent of the median.
  double spread_percent() const { return median > 0 ? 50 * (p90 - p10) / median : 0; }
};

inline Timing summarise(std::vector<double> ms) {  // not empty
  std::sort(ms.begin(), ms.end());
  const auto quantile = [&](double q) {  // between neighbours, linearly
    const double at = q * static_cast<double>(ms.size() - 1);
    const auto low = static_cast<std::size_t>(at);
    const std::size_t high = std::min(low + 1, ms.size() - 1);
    return ms[low] + (at - static_cast<double>(low)) * (ms[high] - ms[low]);
  };
  return {quantile(0.5), quantile(0.1), quantile(0.9), ms.front()};
}

}  // namespace axial::app::bench
