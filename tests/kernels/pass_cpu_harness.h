// Runs one fused pass on the CPU with every output inside a buffer of NaN, and holds it against the float64
// reference: pass_harness.h for the CPU.
#pragma once

#include "kernels/pass_cpu.h"
#include "tests/kernels/pass_harness.h"

namespace axial::kernels::testing {

// A problem with every buffer: outputs and workspace NaN, the workspace of exactly the size asked for.
class CpuPass {
 public:
  CpuPass(const PassCase& c, const PassInputs& in, int threads = 1);

  // The workspace starts `shift` bytes behind a boundary.
  Status forward(std::size_t shift = 0);
  Status backward(std::size_t shift = 0);
  PassOutputs fetch();

  cpu::Executor executor;
  PassProblem problem;
  Tokens y, dx;
  ConstTokens dy;
  PassGradients gradients;
  cpu::PassWeightsOf<double> weights64;  // what a float64 problem has
  cpu::PassGradientsOf<double> gradients64;

 private:
  bool wide() const { return case_.dtype == DType::kFloat64; }
  template <class T>
  T tokens(const Operand& operand) const;

  const PassCase case_;
  const PassInputs& inputs_;
  Operand y_, dx_;
  std::shared_ptr<Bytes> gradients_[kPassParameterCount];
};

PassOutputs run_cpu(const PassCase& c, const PassInputs& in, int threads = 1, std::size_t shift = 0);

// make_pass_inputs, run_cpu, pass_reference, compare_pass; statuses and sentinels too. Empty where all is well.
std::string check_cpu(const PassCase& c);

}  // namespace axial::kernels::testing
