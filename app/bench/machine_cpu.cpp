#include <algorithm>
#include <chrono>
#include <fstream>

#include <unistd.h>

#include <ATen/Parallel.h>

#include "app/bench/machine.h"

namespace axial::app::bench {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t at = line.find(": ");
    if (at != std::string::npos) return line.substr(at + 2);
  }
  return "CPU";
}

class CpuMachine : public Machine {
 public:
  CpuMachine() {
    traits_.name = processor_name();
    traits_.threads = at::get_num_threads();
    long cache = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    // Of a whole socket's cache a few threads do not fill more; rotating past all of it would take gigabytes.
    constexpr long kMost = 64L << 20;
    traits_.cache_bytes = static_cast<std::size_t>(cache > 0 ? std::min(cache, kMost) : kMost);
  }

  at::Device device() const override { return at::kCPU; }
  const Traits& traits() const override { return traits_; }

  std::vector<double> times(const Call& call, int repeats) override {
    std::int64_t i = 0;
    for (const auto start = Clock::now(); i < 2 || milliseconds_since(start) < 50; ++i) call(i);
    std::vector<double> result;
    for (int repeat = 0; repeat < repeats; ++repeat, ++i) {
      const auto start = Clock::now();
      call(i);
      result.push_back(milliseconds_since(start));
    }
    return result;
  }

  std::optional<GraphTimes> graph_times(const Call&, std::int64_t, int) override { return {}; }
  std::optional<std::int64_t> peak_bytes(const std::function<void()>&) override { return {}; }
  void release() override {}

 private:
  Traits traits_;
};

}  // namespace

std::unique_ptr<Machine> make_machine(at::Device device) {
#if defined(AXIAL_WITH_CUDA)
  if (device.is_cuda()) return make_cuda_machine(device);
#endif
  (void)device;
  return std::make_unique<CpuMachine>();
}

}  // namespace axial::app::bench
