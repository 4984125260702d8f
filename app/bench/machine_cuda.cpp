// The only source of the program's benchmark that sees CUDA headers; compiled where AXIAL_HAS_CUDA.
#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "app/bench/machine.h"
#include "app/train/graph.h"

namespace axial::app::bench {

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr int kAmortisedRounds = 5;

class Event {
 public:
  Event() { C10_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() { C10_CUDA_CHECK(cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream())); }
  double since(const Event& begin) const {  // ms; both have happened
    float ms = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&ms, begin.event_, event_));
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

class CudaMachine : public Machine {
 public:
  // Everything runs on one side stream: graphs cannot be captured on the default one, and what autograd and the
  // allocator remember of streams (warm-up, gradients, workspaces) is the same when they are.
  explicit CudaMachine(at::Device device)
      : device_(device),
        device_guard_(device),
        stream_guard_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
    traits_.name = properties.name;
    traits_.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device.index());
    traits_.clock_hz = 1e3 * attribute(cudaDevAttrClockRate, device.index());
    traits_.cache_bytes = static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize, device.index()));
  }

  at::Device device() const override { return device_; }
  const Traits& traits() const override { return traits_; }

  std::vector<double> times(const Call& call, int repeats) override {
    std::int64_t i = 0;
    for (const auto start = std::chrono::steady_clock::now();
         i < 5 || std::chrono::steady_clock::now() - start < std::chrono::milliseconds(100); ++i) {
      call(i);
      synchronize();  // or the loop would queue calls for much longer than it lasts
    }
    return timed(call, i, repeats);
  }

  std::optional<GraphTimes> graph_times(const Call& call, std::int64_t buffers, int repeats) override {
    GraphTimes result;
    std::vector<std::unique_ptr<Graph>> graphs;
    try {
      const auto recorder = make_graph_recorder(device_);
      for (std::int64_t i = 0; i < buffers; ++i) graphs.push_back(recorder->record([&] { call(i); }));
      const Call replay = [&](std::int64_t i) { graphs[static_cast<std::size_t>(i % buffers)]->replay(); };
      for (std::int64_t i = 0; i < std::max<std::int64_t>(buffers, 5); ++i)
        replay(i);  // the first one uploads a graph
      synchronize();
      result.replays = timed(replay, 0, repeats);
      const std::int64_t many = std::max<std::int64_t>(repeats, buffers);
      const Call round = [&](std::int64_t) {
        for (std::int64_t i = 0; i < many; ++i) replay(i);
      };
      result.amortised = timed(round, 0, kAmortisedRounds);
      for (double& ms : result.amortised) ms /= static_cast<double>(many);
    } catch (const c10::Error& e) {
      result = {};
      result.problem = first_line(e.what_without_backtrace());
    } catch (const std::exception& e) {
      result = {};
      result.problem = first_line(e.what());
    }
    if (!result.problem.empty()) (void)cudaGetLastError();  // so that the next call does not report it again
    synchronize();                                          // no replay outlives its graph
    return result;
  }

  std::optional<std::int64_t> peak_bytes(const std::function<void()>& run) override {
    synchronize();
    const auto total = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto allocated = [&] { return allocator::getDeviceStats(device_.index()).allocated_bytes[total]; };
    allocator::resetPeakStats(device_.index());
    const std::int64_t before = allocated().current;
    run();
    synchronize();
    return allocated().peak - before;
  }

  void release() override {
    synchronize();
    allocator::emptyCache();
  }

 private:
  static void synchronize() { c10::cuda::getCurrentCUDAStream().synchronize(); }

  // Calls follow each other as they do in training: nothing waits between them, so that the host's time shows only
  // where it is longer than the device's.
  static std::vector<double> timed(const Call& call, std::int64_t first, int repeats) {
    std::vector<Event> begins(static_cast<std::size_t>(repeats)), ends(static_cast<std::size_t>(repeats));
    for (std::size_t i = 0; i < begins.size(); ++i) {
      begins[i].record();
      call(first + static_cast<std::int64_t>(i));
      ends[i].record();
    }
    synchronize();
    std::vector<double> ms;
    for (std::size_t i = 0; i < begins.size(); ++i) ms.push_back(ends[i].since(begins[i]));
    return ms;
  }

  at::Device device_;
  c10::cuda::CUDAGuard device_guard_;
  c10::cuda::CUDAStreamGuard stream_guard_;
  Traits traits_;
};

}  // namespace

std::unique_ptr<Machine> make_cuda_machine(at::Device device) { return std::make_unique<CudaMachine>(device); }

}  // namespace axial::app::bench
