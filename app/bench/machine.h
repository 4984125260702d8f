// What the benchmark asks of a device: its traits, times, graphs, memory. The CPU's and the GPU's answers lie in one
// source each; the GPU's alone sees CUDA headers and is left out of a build without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace axial::app::bench {

// The i-th call of what is measured; i counts on without end, and the callee rotates its buffers with it.
using Call = std::function<void(std::int64_t)>;

struct Traits {
  std::string name;
  std::size_t cache_bytes = 0;  // the last cache before memory
  int threads = 0;              // CPU
  int multiprocessors = 0;      // GPU
  double clock_hz = 0;          // GPU: the limit that the driver states
};

struct GraphTimes {
  std::vector<double> replays;    // ms, one replay each
  std::vector<double> amortised;  // ms, each the mean of many replays back to back
  std::string problem;            // why there is no graph; the times are empty then
};

class Machine {
 public:
  virtual ~Machine() = default;
  virtual at::Device device() const = 0;
  virtual const Traits& traits() const = 0;
  // Milliseconds of `repeats` calls, after a warm-up.
  virtual std::vector<double> times(const Call& call, int repeats) = 0;
  // The same as graphs, one a buffer (call(0) to call(buffers - 1)); empty where the device has none. The caller has
  // dropped every gradient, so that capture finds its memory in the graphs' own pool.
  virtual std::optional<GraphTimes> graph_times(const Call& call, std::int64_t buffers, int repeats) = 0;
  // What `run` adds to the allocated memory at its peak; empty where the allocator does not count.
  virtual std::optional<std::int64_t> peak_bytes(const std::function<void()>& run) = 0;
  // Gives cached memory back, so that one case does not starve the next.
  virtual void release() = 0;
};

// `device` was seen to work (select_device).
std::unique_ptr<Machine> make_machine(at::Device device);

// The machine of machine_cuda.cpp. Until it is destroyed, the thread's work goes to a stream of its own.
std::unique_ptr<Machine> make_cuda_machine(at::Device device);

}  // namespace axial::app::bench
