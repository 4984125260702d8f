// Loops that share images among threads give the same bytes on any number of them. Tests pass more pixels than one
// task is given: fewer stay on one thread, where ThreadSanitizer has nothing to look at.
#pragma once

#include <cstdint>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

namespace axial::data::test {

template <class Make>
at::Tensor on_threads(int threads, const Make& make) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  at::Tensor made = make();
  at::set_num_threads(before);
  return made;
}

}  // namespace axial::data::test
