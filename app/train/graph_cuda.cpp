#include <exception>
#include <utility>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "app/train/graph.h"

namespace axial::app {

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

class CudaGraph : public Graph {
 public:
  void replay() override { graph_.replay(); }
  at::cuda::CUDAGraph& get() { return graph_; }

 private:
  at::cuda::CUDAGraph graph_;
};

class CudaGraphRecorder : public GraphRecorder {
 public:
  explicit CudaGraphRecorder(at::Device device) : device_(device), pool_(at::cuda::graph_pool_handle()) {}

  std::unique_ptr<Graph> record(const std::function<void()>& call) override {
    c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
    auto graph = std::make_unique<CudaGraph>();
    try {
      graph->get().capture_begin(pool_);
      call();
      graph->get().capture_end();
      return graph;
    } catch (...) {
      const std::exception_ptr failure = std::current_exception();
      try {
        graph->get().capture_end();
      } catch (const std::exception&) {
        abandon(std::move(graph));
      }
      (void)cudaGetLastError();  // so that the next call does not report it again
      std::rethrow_exception(failure);
    }
  }

 private:
  // libtorch leaves a broken capture half open: the allocators of both memories go on asking the graph which stream
  // it captures. So they are told to stop, and the graph is never destroyed, in case something else still asks. What
  // is recorded next has a pool of its own.
  void abandon(std::unique_ptr<CudaGraph> graph) {
    (void)graph.release();
    const auto attempt = [](const auto& call) {
      try {
        call();
      } catch (const std::exception&) {  // the capture had not come as far
      }
    };
    attempt([&] { allocator::endAllocateToPool(device_.index(), pool_); });
    attempt([&] { allocator::releasePool(device_.index(), pool_); });
    at::HostAllocator* pinned = at::getHostAllocator(at::kCUDA);
    attempt([&] { pinned->end_allocate_to_pool(pool_); });
    attempt([&] { pinned->release_pool(pool_); });
    pool_ = at::cuda::graph_pool_handle();
  }

  at::Device device_;
  c10::MempoolId_t pool_;
};

}  // namespace

std::unique_ptr<GraphRecorder> make_graph_recorder(at::Device device) {
  return std::make_unique<CudaGraphRecorder>(device);
}

}  // namespace axial::app
