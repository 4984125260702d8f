// Runs one attention problem on one backend with every output inside a sentinel buffer, and holds it against the
// float64 reference.
//
// Outputs and workspace are NaN (0xFF) before the call, so that a read of scratch that was never written shows. On
// CUDA each buffer is allocated exactly, by its own cudaMalloc, for compute-sanitizer's memcheck. With
// AXIAL_TEST_POISON=0 outputs and workspace are left as allocated, so that its initcheck sees reads of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_reference.h"
#include "tests/kernels/tolerance.h"

namespace axial::kernels::testing {

struct Backend {
  Device device = Device::kCpu;
  int threads = 1;  // of the CPU's executor
};

// Null where the backend can run; else the reason for skipping.
const char* unavailable(const Backend& backend);

// A backend name for parametrised tests: "cpu" or "cuda".
std::string backend_name(Device device);

// The executor of the CPU backend: `threads` std::threads over uneven ranges.
cpu::Executor executor_of(const Backend& backend);

struct Outputs {
  Status status;                         // of the first call that failed
  std::vector<double> o, dq, dk, dv;     // dense [lines, L, heads, d]; empty where not wanted
  std::vector<double> row_max, row_sum;  // [lines, heads, L]
  std::vector<double> d_bias;            // [heads, 2L-1]
  std::string sentinels;                 // empty, or which buffer was written where it should not be
  Bytes bytes;                           // all output buffers, for bit-exact comparison
};

struct RunOptions {
  bool backward = true;
  bool statistics = true;
  // Called between forward and backward with host memory {seed, offset}, uploaded again before the backward.
  std::function<void(std::uint64_t*)> before_backward;
};

Outputs run(const Case& c, const Inputs& inputs, const Backend& backend, const RunOptions& options = {});

// One line a difference, empty where all is well: norm, bias, NaN in different places, sizes.
std::string compare(const char* what, const std::vector<double>& out, const std::vector<double>& expected,
                    const Tolerance& allowed);
std::string compare(const Case& c, const Backend& backend, const Outputs& out, const ReferenceOutput& expected);

// make_inputs, run, reference, compare; statuses and sentinels too.
std::string check(const Case& c, const Backend& backend, const RunOptions& options = {});

// The mask as the backend's own dropout_mask writes it, [lines, heads, L, L]; `problem` names what failed.
std::vector<std::uint8_t> mask(const Case& c, const Backend& backend, std::string& problem);

}  // namespace axial::kernels::testing
