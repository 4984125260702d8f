// The fused pass of kernels/pass.h on the CPU: any D up to 512 and lines of up to 128 tokens whose scratch fits into
// 12 MiB (with AVX-512 D = 128 with 128 tokens, 256 with 72, 512 with 40), with all options but a float32 residual
// stream, in all four types. Some lines at a time go through all steps while they are in cache; the backward
// recomputes everything from x. Tokens need the alignment of one element only. Workspaces may have any alignment, and
// their sizes grow with executor.threads. The results are the same bits for any number of threads.
#pragma once

#include "kernels/pass.h"

namespace axial::kernels::cpu {

// What a float64 problem has instead of its float32 weights and scales, which are not read then.
template <class T>
struct PassWeightsOf {
  const T* norm_weight = nullptr;   // [D]
  const T* norm_bias = nullptr;     // [D]
  const T* qkv_weight = nullptr;    // [3D, D]
  const T* qkv_bias = nullptr;      // [3D], optional
  const T* out_weight = nullptr;    // [D, D]
  const T* out_bias = nullptr;      // [D]
  const T* bias = nullptr;          // [heads, 2L-1], optional
  const T* sample_scale = nullptr;  // s_b[outer0], optional
};

template <class T>
struct PassGradientsOf {
  T* norm_weight = nullptr;
  T* norm_bias = nullptr;
  T* qkv_weight = nullptr;
  T* qkv_bias = nullptr;
  T* out_weight = nullptr;
  T* out_bias = nullptr;
  T* bias = nullptr;
};

// The code of this problem, or kUnsupported with the reason.
Status choose_pass(const PassProblem& problem, KernelChoice* choice);

std::size_t pass_forward_workspace(const PassProblem& problem, const Executor& executor = {});
Status pass_forward(const PassProblem& problem, const Tokens& y, void* workspace, std::size_t workspace_bytes,
                    const Executor& executor = {});
Status pass_forward(const PassProblem& problem, const PassWeightsOf<double>& weights, const Tokens& y,
                    void* workspace, std::size_t workspace_bytes, const Executor& executor = {});

std::size_t pass_backward_workspace(const PassProblem& problem, const Executor& executor = {});
// dx = dy + gradient through the branch; it may be the memory of dy.
Status pass_backward(const PassProblem& problem, const ConstTokens& dy, const Tokens& dx,
                     const PassGradients& gradients, void* workspace, std::size_t workspace_bytes,
                     const Executor& executor = {});
Status pass_backward(const PassProblem& problem, const PassWeightsOf<double>& weights, const ConstTokens& dy,
                     const Tokens& dx, const PassGradientsOf<double>& gradients, void* workspace,
                     std::size_t workspace_bytes, const Executor& executor = {});

}  // namespace axial::kernels::cpu
