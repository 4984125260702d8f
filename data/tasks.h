// How images are shared out to threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace axial::data {

// A quarter of a millisecond or more. Less stays on the caller's thread: handing it out and waiting costs as much on
// an idle machine, and where another process holds the core until that one's time slice is over.
inline constexpr std::int64_t kPixelsPerTask = 1 << 18;

inline std::int64_t images_per_task(std::int64_t pixels) {
  return std::max<std::int64_t>(1, kPixelsPerTask / std::max<std::int64_t>(1, pixels));
}

}  // namespace axial::data
