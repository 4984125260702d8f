// Strides and offsets past 2^31 and 2^32 elements: three lines, 2^31 + 64 elements apart, in one sparse allocation.
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu/convert.h"
#include "tests/kernels/backend_test.h"

#ifdef AXIAL_WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace axial::kernels::testing {
namespace {

constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64, kLines = 3, kLength = 20, kDim = 16;
constexpr std::int64_t kBlock = kLength * kDim;  // of one tensor of one line
// Within a line, in elements: q, k, v, o, d_o, dq, dk, dv, one block each.
constexpr std::int64_t kBlocks = 8;
constexpr std::size_t kBytes = static_cast<std::size_t>((kLines - 1) * kStride + kBlocks * kBlock) * 2;

// bfloat16 memory of which only the touched pages exist on the CPU.
class Memory {
 public:
  explicit Memory(Device device) : device_(device) {
    if (device == Device::kCpu) {
      void* mapped =
          mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped != MAP_FAILED) data = static_cast<std::uint16_t*>(mapped);
      return;
    }
#ifdef AXIAL_WITH_CUDA
    std::size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess || available < kBytes + (std::size_t{1} << 30)) return;
    if (cudaMalloc(reinterpret_cast<void**>(&data), kBytes) != cudaSuccess) data = nullptr;
#endif
  }
  ~Memory() {
    if (data == nullptr) return;
    if (device_ == Device::kCpu) munmap(data, kBytes);
#ifdef AXIAL_WITH_CUDA
    if (device_ == Device::kCuda) (void)cudaFree(data);
#endif
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    if (device_ == Device::kCpu) std::memcpy(to, from, bytes);
#ifdef AXIAL_WITH_CUDA
    if (device_ == Device::kCuda) {
      ASSERT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), cudaSuccess);
    }
#endif
  }

  std::uint16_t* data = nullptr;

 private:
  Device device_;
};

class LargeStrides : public BackendTest {};
AXIAL_ON_EVERY_BACKEND(LargeStrides);

TEST_P(LargeStrides, PastTwoToThe32) {
  const Memory memory(GetParam());
  if (memory.data == nullptr) GTEST_SKIP() << "needs " << (kBytes >> 30) << " GiB";
  const bool on_cpu = GetParam() == Device::kCpu;

  Case c;
  c.outer[0] = kLines;
  c.length = kLength;
  c.head_dim = kDim;
  c.dtype = DType::kBFloat16;
  const Inputs in = make_inputs(c);
  const ReferenceOutput expected = reference(in.reference);
  const std::vector<double>* const given[] = {&in.reference.q, &in.reference.k, &in.reference.v, nullptr,
                                              &in.reference.d_o};
  for (std::int64_t line = 0; line < kLines; ++line) {
    std::vector<std::uint16_t> block(kBlocks * kBlock, 0xFFFF);
    for (std::int64_t tensor = 0; tensor < 5; ++tensor) {
      if (given[tensor] == nullptr) continue;
      for (std::int64_t i = 0; i < kBlock; ++i) {
        block[tensor * kBlock + i] = float_to_bfloat16(static_cast<float>((*given[tensor])[line * kBlock + i]));
      }
    }
    memory.copy(memory.data + line * kStride, block.data(), block.size() * 2);
  }

  const auto place = [&](auto& view, std::int64_t tensor) {
    view.data = memory.data + tensor * kBlock;
    view.outer_stride[0] = kStride;
    view.token_stride = kDim;
    view.head_stride = kDim;
  };
  AttentionProblem problem;
  problem.lines.outer[0] = kLines;
  problem.lines.length = kLength;
  problem.heads = 1;
  problem.head_dim = kDim;
  problem.dtype = c.dtype;
  problem.scale = in.reference.scale;
  place(problem.q, 0);
  place(problem.k, 1);
  place(problem.v, 2);
  AttentionOutput output;
  place(output.o, 3);
  AttentionGradients g;
  place(g.o, 3);
  place(g.d_o, 4);
  place(g.dq, 5);
  place(g.dk, 6);
  place(g.dv, 7);
  std::vector<float> statistics(2 * kLines * kLength);
  float* row_max = statistics.data();
  std::vector<std::uint8_t> scratch(on_cpu ? cpu::attention_backward_workspace(problem, g)
                                           : cuda::attention_backward_workspace(problem, g));
  void* workspace = scratch.data();
#ifdef AXIAL_WITH_CUDA
  if (!on_cpu) {
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&row_max), statistics.size() * 4), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&workspace, scratch.size() + 16), cudaSuccess);
  }
#endif
  output.row_max = row_max;
  output.row_sum = row_max + kLines * kLength;
  g.row_max = output.row_max;
  g.row_sum = output.row_sum;
  const Status forward =
      on_cpu ? cpu::attention_forward(problem, output) : cuda::attention_forward(problem, output, nullptr);
  const Status backward = on_cpu ? cpu::attention_backward(problem, g, workspace, scratch.size())
                                 : cuda::attention_backward(problem, g, workspace, scratch.size(), nullptr);
  EXPECT_TRUE(forward.ok()) << forward.message;
  EXPECT_TRUE(backward.ok()) << backward.message;

  Outputs out;
  std::vector<double>* const results[] = {&out.o, nullptr, &out.dq, &out.dk, &out.dv};
  for (std::int64_t line = 0; line < kLines; ++line) {
    std::vector<std::uint16_t> block(kBlocks * kBlock);
    memory.copy(block.data(), memory.data + line * kStride, block.size() * 2);
    for (std::int64_t tensor = 3; tensor < kBlocks; ++tensor) {
      if (results[tensor - 3] == nullptr) continue;
      for (std::int64_t i = 0; i < kBlock; ++i) {
        results[tensor - 3]->push_back(bfloat16_to_float(block[tensor * kBlock + i]));
      }
    }
  }
  EXPECT_EQ(compare(c, backend_, out, expected), "");
#ifdef AXIAL_WITH_CUDA
  if (!on_cpu) {
    (void)cudaFree(row_max);
    (void)cudaFree(workspace);
  }
#endif
}

}  // namespace
}  // namespace axial::kernels::testing
