#include "model/branch.h"

#include <ATen/ATen.h>

#include "model/bridge.h"
#include "model/composed.h"

namespace axial {
namespace {

at::Tensor scale_channels(const at::Tensor& t, const at::Tensor& scale) {  // t [T, D], scale [D]
  return (t * scale.to(accumulate_type(t.scalar_type()))).to(t.scalar_type());
}

// s_b m o t, token by token, t [T, D]; both keep their values beside 16-bit t.
at::Tensor scale_tokens(const at::Tensor& t, const Branch& b) {
  if (!b.mask.defined()) return scale_samples(t, b.sample_scale);
  return scale_samples(t * b.mask, b.sample_scale).to(t.scalar_type());
}

}  // namespace

at::Tensor fold_scale(const at::Tensor& t, const at::Tensor& layer_scale, at::ScalarType type) {
  if (!layer_scale.defined()) return t.to(type);
  const auto sums = accumulate_type(type);
  const at::Tensor scale = layer_scale.to(sums);
  return (t.to(sums) * (t.dim() == 2 ? scale.unsqueeze(1) : scale)).to(type);
}

bool folds_scale(at::ScalarType type) { return type != at::kHalf; }

BranchGradients unfold_scale(const at::Tensor& product, const at::Tensor& sums, const Branch& b,
                             const BranchWanted& wanted) {
  BranchGradients g;
  const auto scaled = [&](const at::Tensor& gradient, const at::Tensor& parameter) {
    return fold_scale(gradient, b.layer_scale, gradient.scalar_type()).to(parameter.scalar_type());
  };
  if (wanted.weight) g.weight = scaled(product, b.weight);
  if (wanted.bias) g.bias = scaled(sums, b.bias);
  if (wanted.layer_scale) {
    const auto type = product.scalar_type();
    g.layer_scale = ((b.weight.to(type) * product).sum(1) + b.bias.to(type) * sums).to(b.layer_scale.scalar_type());
  }
  return g;
}

at::Tensor branch_forward(const at::Tensor& h, const Branch& b, const at::Tensor& x) {
  const auto type = h.scalar_type();
  const at::Tensor folded = folds_scale(type) ? b.layer_scale : at::Tensor();
  at::Tensor y = at::addmm(fold_scale(b.bias, folded, type), h, fold_scale(b.weight, folded, type).t());
  if (b.layer_scale.defined() && !folded.defined()) y = scale_channels(y, b.layer_scale);
  y = scale_tokens(y, b);
  if (x.scalar_type() != type) return x + y;
  return y.add_(x);  // the branch first: one rounding at the size of y, as the sum itself has
}

BranchGradients branch_backward(const at::Tensor& dy, const at::Tensor& h, const Branch& b,
                                const BranchWanted& wanted) {
  const auto type = dy.scalar_type();
  const at::Tensor du = scale_tokens(dy, b);  // of lambda o (h W^T + b)
  BranchGradients g = unfold_scale(wanted.product() ? token_product(du, h) : at::Tensor(),
                                   wanted.bias || wanted.layer_scale ? token_sum(du) : at::Tensor(), b, wanted);
  if (!wanted.h) return g;
  const at::Tensor folded = folds_scale(type) ? b.layer_scale : at::Tensor();
  const bool apart = b.layer_scale.defined() && !folded.defined();
  g.h = at::mm(apart ? scale_channels(du, b.layer_scale) : du, fold_scale(b.weight, folded, type));
  return g;
}

}  // namespace axial
