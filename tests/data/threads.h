// Loops that share images among threads give the same bytes on any number of them. Tests pass enough images for three
// tasks: what is one task stays on one thread, where ThreadSanitizer has nothing to look at.
#pragma once

#include <cstdint>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "data/tasks.h"

namespace axial::data::test {

inline std::int64_t images_for_threads(std::int64_t pixels) { return 2 * images_per_task(pixels) + 1; }

template <class Make>
at::Tensor on_threads(int threads, const Make& make) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  at::Tensor made = make();
  at::set_num_threads(before);
  return made;
}

}  // namespace axial::data::test
