#include "model/attention.h"

#include <string>

#include "kernels/kernels.h"
#include "model/anomaly.h"
#include "model/bridge.h"
#include "model/dropout.h"
#include "model/init.h"
#include "model/reference.h"

namespace axial {
namespace {

// The option that fixes height and width; null: none.
const char* fixes_size(const AxialAttentionOptions& o) {
  return o.relative_bias ? "relative_bias" : o.position_sensitive ? "position_sensitive" : nullptr;
}

void check_options(const AxialAttentionOptions& o) {
  TORCH_CHECK(o.dim > 0, "axial attention: dim must be positive, is ", o.dim);
  TORCH_CHECK(o.heads > 0 && o.dim % o.heads == 0, "axial attention: heads (", o.heads, ") must divide dim (", o.dim,
              ")");
  TORCH_CHECK(o.dim / o.heads <= kernels::kMaxHeadDim, "axial attention: dim / heads is ", o.dim / o.heads,
              ", the limit is ", kernels::kMaxHeadDim);
  TORCH_CHECK(o.dropout >= 0 && o.dropout < 1, "axial attention: dropout must be in [0, 1), is ", o.dropout);
  TORCH_CHECK(o.projection_dropout >= 0 && o.projection_dropout < 1,
              "axial attention: projection_dropout must be in [0, 1), is ", o.projection_dropout);
  TORCH_CHECK(o.drop_path >= 0 && o.drop_path < 1, "axial attention: drop_path must be in [0, 1), is ", o.drop_path);
  TORCH_CHECK(o.layer_scale >= 0, "axial attention: layer_scale must not be negative, is ", o.layer_scale);
  TORCH_CHECK(o.eps > 0, "axial attention: eps must be positive, is ", o.eps);
  if (const char* fixed = fixes_size(o)) {
    TORCH_CHECK(o.height > 0 && o.width > 0, "axial attention: ", fixed, " needs height and width, which are ",
                o.height, " and ", o.width);
  }
  TORCH_CHECK(!o.rotary || o.dim / o.heads % 2 == 0,
              "axial attention: rotary turns pairs of channels, dim / heads must be even, is ", o.dim / o.heads);
  TORCH_CHECK(!o.rotary || o.rotary_base > 1, "axial attention: rotary_base must be above 1, is ", o.rotary_base);
}

}  // namespace

AxialAttentionImpl::AxialAttentionImpl(const AxialAttentionOptions& options) : options_(options) {
  check_options(options_);
  const std::int64_t dim = options_.dim;
  const auto norm = [&](const char* name) {
    return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim}).eps(options_.eps)));
  };
  const auto linear = [&](const char* name, std::int64_t out, bool bias) {
    return register_module(name, make_linear(dim, out, bias));
  };
  row_norm_ = norm("row_norm");
  row_qkv_ = linear("row_qkv", 3 * dim, false);
  row_out_ = linear("row_out", dim, true);
  col_norm_ = norm("col_norm");
  col_qkv_ = linear("col_qkv", 3 * dim, false);
  col_out_ = linear("col_out", dim, true);
  if (options_.relative_bias) {
    row_bias_ = register_parameter("row_bias", torch::zeros({options_.heads, 2 * options_.width - 1}));
    col_bias_ = register_parameter("col_bias", torch::zeros({options_.heads, 2 * options_.height - 1}));
  }
  if (options_.position_sensitive) {
    const auto tables = [&](const std::string& name, std::int64_t length) {
      const auto table = [&](const char* what) {
        return register_parameter(name + what,
                                  truncated_normal_(torch::empty({2 * length - 1, dim / options_.heads})));
      };
      return RelativeTables{table("_relative_q"), table("_relative_k"), table("_relative_v")};
    };
    row_relative_ = tables("row", options_.width);
    col_relative_ = tables("col", options_.height);
  }
  if (options_.layer_scale > 0) {
    row_scale_ = register_parameter("row_scale", torch::full({dim}, options_.layer_scale));
    col_scale_ = register_parameter("col_scale", torch::full({dim}, options_.layer_scale));
  }
}

PassParameters AxialAttentionImpl::parameters_of(Axis axis) const {
  if (axis == Axis::kRow) {
    return {row_norm_->weight, row_norm_->bias, row_qkv_->weight, row_out_->weight,
            row_out_->bias,    row_bias_,       row_scale_,       row_relative_};
  }
  return {col_norm_->weight, col_norm_->bias, col_qkv_->weight, col_out_->weight,
          col_out_->bias,    col_bias_,       col_scale_,       col_relative_};
}

PassOptions AxialAttentionImpl::options_of(Axis axis, const torch::Tensor& x, const RandomState& random,
                                           at::ScalarType arithmetic) {
  const std::uint64_t offset = axis == Axis::kRow ? 0 : 1;
  PassOptions pass;
  pass.axis = axis;
  pass.heads = options_.heads;
  pass.eps = options_.eps;
  pass.dropout = options_.dropout;
  pass.projection_dropout = options_.projection_dropout;
  pass.stream = options_.stream + offset;
  pass.random = random;
  pass.arithmetic = arithmetic;
  pass.sample_scale = sample_scale(x.size(0), options_.drop_path, random, options_.stream + 2 + offset,
                                   accumulate_type(x.scalar_type()));
  if (options_.rotary) {
    const bool row = axis == Axis::kRow;
    pass.rotary = (row ? row_rotary_ : col_rotary_)
                      .get(x.size(row ? 2 : 1), options_.dim / options_.heads, options_.rotary_base,
                           x.options().dtype(accumulate_type(x.scalar_type())));
  }
  return pass;
}

void AxialAttentionImpl::append_passes(const torch::Tensor& x, const RandomState& random, at::ScalarType arithmetic,
                                       std::vector<PassParameters>& parameters, std::vector<PassOptions>& passes) {
  TORCH_CHECK(x.dim() == 4 && x.size(3) == options_.dim, "axial attention: expected x [B, H, W, ", options_.dim,
              "], got ", x.sizes());
  if (const char* fixed = fixes_size(options_)) {
    TORCH_CHECK(x.size(1) == options_.height && x.size(2) == options_.width, "axial attention: ", fixed,
                " was built for ", options_.height, " x ", options_.width, " tokens, got x ", x.sizes());
  }
  const RandomState drawn = is_training() ? random : RandomState{};
  for (const Axis axis : {options_.first, options_.first == Axis::kRow ? Axis::kColumn : Axis::kRow}) {
    parameters.push_back(parameters_of(axis));
    passes.push_back(options_of(axis, x, drawn, arithmetic));
  }
}

torch::Tensor AxialAttentionImpl::run(const torch::Tensor& x, const PassParameters* parameters,
                                      const PassOptions* passes) {
  if (options_.backend == Backend::kFused && !observed()) return axial_passes(x, parameters, passes);
  torch::Tensor y = x;
  for (int i = 0; i < 2; ++i) {
    y = options_.backend == Backend::kFused ? axial_pass(y, parameters[i], passes[i])
                                            : reference_pass(y, parameters[i], passes[i]);
    observe(this, passes[i].axis == Axis::kRow ? "row pass" : "column pass", y);
  }
  return y;
}

torch::Tensor AxialAttentionImpl::forward(const torch::Tensor& x, const RandomState& random) {
  std::vector<PassParameters> parameters;
  std::vector<PassOptions> passes;
  append_passes(x, random, at::ScalarType::Undefined, parameters, passes);
  if (options_.backend == Backend::kFused) prepare_passes(x, parameters.data(), passes.data(), passes.size());
  return run(x, parameters.data(), passes.data());
}

}  // namespace axial
