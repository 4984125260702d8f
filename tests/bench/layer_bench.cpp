// Times the axial layer (row pass, then column pass) on the fused and the reference backend in one run:
// median milliseconds of forward (no gradients kept) and of forward + backward, and the peak memory that a
// forward + backward adds. CUDA events, warmed up, eager.
//
// usage: layer_bench [B H W D heads dtype]...     dtype: bfloat16, float16, float32, tf32; default: train64
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/torch.h>

#include "model/attention.h"

namespace {

struct Shape {
  std::int64_t b, h, w, d, heads;
  std::string dtype;
};

double median_ms(const std::function<void()>& run) {
  for (int i = 0; i < 5; ++i) run();
  std::vector<float> times;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  cudaEvent_t begin, end;
  C10_CUDA_CHECK(cudaEventCreate(&begin));
  C10_CUDA_CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 50; ++i) {
    C10_CUDA_CHECK(cudaEventRecord(begin, stream));
    run();
    C10_CUDA_CHECK(cudaEventRecord(end, stream));
    C10_CUDA_CHECK(cudaEventSynchronize(end));
    times.push_back(0);
    C10_CUDA_CHECK(cudaEventElapsedTime(&times.back(), begin, end));
  }
  C10_CUDA_CHECK(cudaEventDestroy(begin));
  C10_CUDA_CHECK(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + 25, times.end());
  return times[25];
}

void bench(const Shape& s, axial::Backend backend) {
  at::globalContext().setAllowTF32CuBLAS(s.dtype == "tf32");
  const at::ScalarType type = s.dtype == "bfloat16" ? at::kBFloat16 : s.dtype == "float16" ? at::kHalf : at::kFloat;
  axial::AxialAttentionOptions options;
  options.dim = s.d;
  options.heads = s.heads;
  options.backend = backend;
  axial::AxialAttention layer(options);
  layer->to(at::kCUDA);
  const auto place = at::TensorOptions(at::kCUDA).dtype(type);
  const at::Tensor x = at::randn({s.b, s.h, s.w, s.d}, place).requires_grad_();
  const at::Tensor dy = at::randn_like(x);
  const double forward = median_ms([&] {
    const at::NoGradGuard no_grad;
    layer->forward(x);
  });
  auto both = [&] {
    for (auto& p : layer->parameters()) p.mutable_grad() = at::Tensor();
    x.mutable_grad() = at::Tensor();
    layer->forward(x).backward(dy);
  };
  const double total = median_ms(both);
  x.mutable_grad() = at::Tensor();
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  const auto before = c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current;
  both();
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  const auto peak = c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].peak;
  std::printf("%4ld,%ld,%ld,%ld,%ld %-9s %-9s forward %8.3f ms  forward+backward %8.3f ms  peak %6.0f MiB\n", s.b, s.h, s.w,
              s.d, s.heads, s.dtype.c_str(), backend == axial::Backend::kFused ? "fused" : "reference", forward, total,
              static_cast<double>(peak - before) / (1 << 20));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (!at::hasCUDA()) {
    std::fprintf(stderr, "layer_bench: no CUDA device\n");
    return 1;
  }
  std::vector<Shape> shapes;
  for (int i = 1; i + 5 < argc; i += 6) {
    shapes.push_back({std::stol(argv[i]), std::stol(argv[i + 1]), std::stol(argv[i + 2]), std::stol(argv[i + 3]),
                      std::stol(argv[i + 4]), argv[i + 5]});
  }
  if (shapes.empty()) shapes.push_back({512, 32, 32, 64, 4, "bfloat16"});
  for (const Shape& shape : shapes) {
    for (const auto backend : {axial::Backend::kFused, axial::Backend::kReference}) bench(shape, backend);
  }
  return 0;
}
