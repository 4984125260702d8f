// axial::kernels on its own: attention over two lines of two tokens, on the CPU, without libtorch.
#include <cmath>
#include <cstdio>

#include <axial/kernels/kernels.h>
#include <axial/kernels/pass.h>

int main() {
  using namespace axial::kernels;
  const float q[4] = {0, 0, 1, 1}, k[4] = {5, -3, 0, 0}, v[4] = {1, 3, 2, 6};  // [line, token], one head, one channel
  float o[4] = {-1, -1, -1, -1};
  AttentionProblem problem;
  problem.lines.outer[0] = 2;
  problem.lines.length = 2;
  problem.heads = problem.head_dim = 1;
  const auto in = [](const float* data) {
    ConstView view;
    view.data = data;
    view.outer_stride[0] = 2;
    view.token_stride = 1;
    return view;
  };
  problem.q = in(q);
  problem.k = in(k);
  problem.v = in(v);
  AttentionOutput output;
  output.o.data = o;
  output.o.outer_stride[0] = 2;
  output.o.token_stride = 1;
  const Status status = cpu::attention_forward(problem, output);
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message), 1;
  // Scores are equal within each line: means.
  const float expected[4] = {2, 2, 4, 4};
  for (int i = 0; i < 4; ++i) {
    if (!(std::abs(o[i] - expected[i]) < 1e-6f)) return std::fprintf(stderr, "o[%d] = %g\n", i, o[i]), 1;
  }
  std::puts("attention: ok");
}
