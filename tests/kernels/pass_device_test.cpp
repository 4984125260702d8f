// What needs the CUDA runtime itself: captured graphs, very large strides, a second device.
#include <cstring>

#include "kernels/pass.h"
#include "tests/kernels/pass_harness.h"

#ifdef AXIAL_WITH_CUDA
#include <cuda_runtime.h>

namespace axial::kernels::testing {
namespace {

class PassDevice : public PassTest {};
class Captured : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* reason = unavailable({Device::kCuda, 1})) GTEST_SKIP() << reason;
  }
};

// A captured graph on a stream of its own.
class Graph {
 public:
  // `calls` enqueue onto the stream and return the first status that is not ok.
  template <class Calls>
  explicit Graph(const Calls& calls) {
    note(cudaStreamCreate(&stream_));
    note(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    const Status status = calls(stream_);
    if (!status.ok()) error_ = status.message;
    note(cudaStreamEndCapture(stream_, &graph_));
    if (error_.empty()) note(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~Graph() {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Sets rng = {seed, offset} in device memory, replays, waits. Returns what went wrong.
  std::string replay(const std::uint64_t* rng, std::uint64_t offset) {
    if (!error_.empty()) return error_;
    note(cudaMemcpyAsync(const_cast<std::uint64_t*>(rng) + 1, &offset, sizeof(offset), cudaMemcpyHostToDevice,
                         stream_));
    note(cudaGraphLaunch(executable_, stream_));
    note(cudaStreamSynchronize(stream_));
    return error_;
  }

 private:
  void note(cudaError_t code) {
    if (code != cudaSuccess && error_.empty()) error_ = cudaGetErrorString(code);
  }
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  std::string error_;
};

constexpr std::uint64_t kOffsets[] = {5, 6, 5};

// With V = 1 (the unit matrix) a row of O shows which probabilities were kept.
TEST_F(Captured, Case08_AttentionDrawsAnewAtEachReplay) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    Case c;
    c.outer[0] = 6;
    c.length = c.head_dim = 16;
    c.heads = 2;
    c.dtype = dtype;
    c.dropout = 0.3;
    c.inputs = c.gradients = Layout::kContiguous;
    const auto make = [](const Case& of) {
      Inputs in = make_inputs(of);
      std::vector<double> unit(in.reference.v.size());
      for (std::size_t i = 0; i < unit.size(); ++i) unit[i] = i / 32 % 16 == i % 16 ? 1 : 0;
      set_values(of, in.v, unit, in.reference.v);
      return in;
    };
    const Inputs in = make(c);
    DeviceBuffers device(Device::kCuda);
    const auto place = [&](auto& view, const Operand& operand) {
      std::copy(operand.strides.outer_stride, operand.strides.outer_stride + kMaxOuter, view.outer_stride);
      view.token_stride = operand.strides.token_stride;
      view.head_stride = operand.strides.head_stride;
      view.data = static_cast<std::uint8_t*>(device.put(operand.buffer)) + operand.offset * element_size(dtype);
    };
    std::vector<Operand> outputs = make_operands(c, Layout::kContiguous, 4);  // o, dq, dk, dv
    AttentionProblem problem;
    problem.lines.outer[0] = c.outer[0];
    problem.lines.length = c.length;
    problem.heads = c.heads;
    problem.head_dim = c.head_dim;
    problem.dtype = dtype;
    problem.scale = in.reference.scale;
    problem.dropout.p = c.dropout;
    problem.dropout.rng = static_cast<const std::uint64_t*>(device.put(in.rng));
    problem.dropout.stream = c.stream;
    place(problem.q, in.q);
    place(problem.k, in.k);
    place(problem.v, in.v);
    const std::int64_t rows = c.outer[0] * c.heads * c.length;
    AttentionOutput output;
    place(output.o, outputs[0]);
    output.row_max = device.put(sentinel_buffer(rows, 4));
    output.row_sum = device.put(sentinel_buffer(rows, 4));
    AttentionGradients gradients;
    place(gradients.o, outputs[0]);
    place(gradients.d_o, in.d_o);
    gradients.row_max = output.row_max;
    gradients.row_sum = output.row_sum;
    place(gradients.dq, outputs[1]);
    place(gradients.dk, outputs[2]);
    place(gradients.dv, outputs[3]);
    const std::size_t bytes = cuda::attention_backward_workspace(problem, gradients);
    void* workspace = device.put(std::make_shared<Bytes>(bytes, kSentinel));
    const auto keep = std::make_shared<Bytes>(rows * c.length, kSentinel);
    auto* mask = static_cast<std::uint8_t*>(device.put(keep));
    Graph graph([&](cudaStream_t stream) {
      Status status = cuda::attention_forward(problem, output, stream);
      if (status.ok()) status = cuda::attention_backward(problem, gradients, workspace, bytes, stream);
      if (status.ok()) status = cuda::dropout_mask(problem.lines, c.heads, problem.dropout, mask, stream);
      return status;
    });
    std::vector<double> o[3];
    for (int replay = 0; replay < 3; ++replay) {
      for (const Operand& operand : outputs) {
        std::fill(operand.buffer->begin(), operand.buffer->end(), kSentinel);
        device.refresh(operand.buffer);
      }
      ASSERT_EQ(graph.replay(problem.dropout.rng, kOffsets[replay]), "");
      ASSERT_EQ(device.fetch(), "");
      o[replay] = dense(c, outputs[0]);
      for (std::size_t i = 0; i < o[replay].size(); ++i) {
        const std::size_t key = i % 16, head = i / 16 % 2, query = i / 32 % 16, line = i / 512;
        ASSERT_EQ(o[replay][i] != 0, (*keep)[((line * 2 + head) * 16 + query) * 16 + key] != 0) << i;
      }
      // An ordinary call with this offset.
      Case plain = c;
      plain.rng_offset = kOffsets[replay];
      const Outputs expected = run(plain, make(plain), {Device::kCuda, 1});
      ASSERT_TRUE(expected.status.ok()) << expected.status.message;
      EXPECT_EQ(o[replay], expected.o);
      EXPECT_EQ(dense(c, outputs[1]), expected.dq);
      EXPECT_EQ(dense(c, outputs[2]), expected.dk);
      EXPECT_EQ(dense(c, outputs[3]), expected.dv);
    }
    EXPECT_NE(o[0], o[1]);
    EXPECT_EQ(o[0], o[2]);
  }
}

TEST_F(PassDevice, Case08_PassDrawsAnewAtEachReplay) {
  std::string unsupported;
  for (const bool branch : {false, true}) {
    for (const std::int64_t length : {6, 28}) {
      PassCase c;
      c.outer[1] = 9;
      c.length = length;
      c.dtype = length == 6 ? DType::kBFloat16 : DType::kFloat16;
      (branch ? c.projection : c.dropout) = 0.3;
      const PassInputs in = make_pass_inputs(c);
      PassRun run(c, in);
      if (branch && run.chosen.code == Code::kUnsupported) {
        unsupported = run.chosen.message;
        continue;
      }
      ASSERT_TRUE(run.chosen.ok() && run.backward_chosen()) << run.chosen.message;
      Graph graph([&](cudaStream_t stream) {
        Status status = run.pack(stream);
        if (status.ok()) status = run.forward(stream);
        if (status.ok()) status = run.backward(stream);
        if (status.ok()) status = run.draw_masks(stream);
        return status;
      });
      PassOutputs out[3];
      for (int replay = 0; replay < 3; ++replay) {
        run.poison();
        ASSERT_EQ(graph.replay((branch ? run.problem.projection : run.problem.dropout).rng, kOffsets[replay]), "");
        out[replay] = run.fetch();
        ASSERT_TRUE(out[replay].status.ok()) << out[replay].status.message;
        EXPECT_EQ(out[replay].sentinels, "");
        // An ordinary call with this offset; and the gradients are those of the replay's own mask.
        PassCase plain = c;
        plain.rng_offset = kOffsets[replay];
        EXPECT_TRUE(out[replay].bytes == run_pass(plain, make_pass_inputs(plain)).bytes) << plain.describe();
        PassReferenceInput reference = in.reference;
        reference.keep = out[replay].keep;
        reference.projection_keep = out[replay].projection_keep;
        EXPECT_EQ(compare_pass(c, out[replay], reference, pass_reference(reference)), "") << c.describe();
      }
      const auto mask = [&](int i) { return branch ? out[i].projection_keep : out[i].keep; };
      EXPECT_NE(mask(0), mask(1));
      EXPECT_FALSE(out[0].bytes == out[1].bytes);
      EXPECT_EQ(mask(0), mask(2));
      EXPECT_TRUE(out[0].bytes == out[2].bytes);
    }
  }
  if (!unsupported.empty()) GTEST_SKIP() << "of the branch: " << unsupported;
}

// Offsets past 2^31 and 2^32 elements: three lines of x, y, dy and dx, 2^31 + 64 elements apart in one allocation.
TEST_F(PassDevice, StridesPastTwoToThe32) {
  PassCase c;
  c.outer[0] = 3;
  c.outer[1] = 1;
  c.length = 20;
  const PassInputs in = make_pass_inputs(c);
  PassRun run(c, in);
  ASSERT_TRUE(run.chosen.ok() && run.backward_chosen()) << run.chosen.message;
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64;
  const std::int64_t block = c.length * c.dim;
  const std::size_t bytes = static_cast<std::size_t>(2 * kStride + 4 * block) * 2;
  std::size_t available = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
  std::uint16_t* memory = nullptr;
  if (available < bytes + (std::size_t{1} << 30) ||
      cudaMalloc(reinterpret_cast<void**>(&memory), bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "needs " << (bytes >> 30) << " GiB";
  }
  const auto place = [&](auto& tokens, std::int64_t tensor, const Operand& operand) {
    for (std::int64_t line = 0; line < 3; ++line) {
      EXPECT_EQ(cudaMemcpy(memory + line * kStride + tensor * block,
                           operand.buffer->data() + (operand.offset + line * block) * 2,
                           static_cast<std::size_t>(block) * 2, cudaMemcpyHostToDevice),
                cudaSuccess);
    }
    tokens.data = memory + tensor * block;
    tokens.outer_stride[0] = kStride;
  };
  const Operand nothing = make_tokens(c, TokenLayout::kRows);  // NaN
  place(run.problem.x, 0, in.x);
  place(run.y, 1, nothing);
  place(run.dy, 2, in.dy);
  place(run.dx, 3, nothing);
  for (const Status& status : {run.pack(), run.forward(), run.backward()}) EXPECT_TRUE(status.ok()) << status.message;
  const PassOutputs far = run.fetch(), near = run_pass(c, in);
  EXPECT_TRUE(far.status.ok() && near.status.ok()) << far.status.message << near.status.message;
  for (const PassParameter& p : kPassParameters)
    EXPECT_EQ(far.gradients.*p.values, near.gradients.*p.values) << p.name;
  for (const std::int64_t tensor : {1, 3}) {
    Operand result = make_tokens(c, TokenLayout::kRows);
    for (std::int64_t line = 0; line < 3; ++line) {
      EXPECT_EQ(cudaMemcpy(result.buffer->data() + (result.offset + line * block) * 2,
                           memory + line * kStride + tensor * block, static_cast<std::size_t>(block) * 2,
                           cudaMemcpyDeviceToHost),
                cudaSuccess);
    }
    EXPECT_EQ(dense(c.tokens(), result), tensor == 1 ? near.y : near.dx) << tensor;
  }
  (void)cudaFree(memory);
}

// Opt-in to shared memory is per device; results are not.
TEST_F(PassDevice, Case07_TwoDevices) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "needs two CUDA devices, found " << count;
  PassCase c;
  c.outer[1] = 500;
  c.length = 20;
  c.dropout = 0.1;
  const PassInputs in = make_pass_inputs(c);
  PassOutputs out[2];
  for (int device = 0; device < 2; ++device) {
    ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
    out[device] = run_pass(c, in);
    int current = -1;
    ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, device);
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_TRUE(out[0].status.ok() && out[1].status.ok()) << out[0].status.message << out[1].status.message;
  EXPECT_TRUE(out[0].bytes == out[1].bytes);
}

}  // namespace
}  // namespace axial::kernels::testing

#endif
