// How a composed branch ends, with its gradients: y = x + s_b lambda o m o (h W^T + b), h the tokens before the last
// projection and m the mask of its dropout. Callers hold a device guard and record no gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace axial {

struct Branch {
  at::Tensor weight, bias;       // [D, M], [D], any floating type
  at::Tensor layer_scale = {};   // lambda [D] (Touvron et al. 2021, "CaiT"); undefined: 1
  at::Tensor sample_scale = {};  // s_b [B] of the accumulate type; undefined: 1
  at::Tensor mask = {};          // m [T, D] of the accumulate type; undefined: 1
};

at::Tensor branch_forward(const at::Tensor& h,  // [T, M]
                          const Branch& branch,
                          const at::Tensor& x);  // [T, D]; y has its type

// dy in the type of h. Each undefined where it is not wanted; those of parameters in the parameters' types.
struct BranchGradients {
  at::Tensor h, weight, bias, layer_scale;
};
struct BranchWanted {
  bool h = false, weight = false, bias = false, layer_scale = false;
  bool product() const { return weight || layer_scale; }  // what needs h
};
BranchGradients branch_backward(const at::Tensor& dy,  // [T, D]
                                const at::Tensor& h,   // [T, M]; may be undefined without wanted.product()
                                const Branch& branch, const BranchWanted& wanted);

// The layer scale folded into the projection: diag(lambda) W for W [D, M], lambda o b for b [D], rounded to `type`
// once. An undefined scale is 1.
at::Tensor fold_scale(const at::Tensor& t, const at::Tensor& layer_scale, at::ScalarType type);
// Whether a folded scale keeps its digits: float16 has no exponents for weights of 1e-2 times scales of 1e-5.
bool folds_scale(at::ScalarType type);
// Gradients of weight, bias and scale from those of the folded ones, [D, M] and [D] without lambda:
//   dW = diag(lambda) M,   db = lambda o m,   dlambda = rowsum(W o M) + b o m
BranchGradients unfold_scale(const at::Tensor& product, const at::Tensor& sums, const Branch& branch,
                             const BranchWanted& wanted);

}  // namespace axial
