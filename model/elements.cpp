#include "model/elements.h"

#include <cmath>

namespace axial {

namespace {

double linear(double in, double out, bool bias) { return in * out + (bias ? out : 0); }

double layer_norm(double dim) { return 2 * dim; }

// One pass along lines of `line` tokens: norm, qkv, projection; its tables of relative positions; layer scale.
double pass(const AxialClassifierOptions& o, double dim, double heads, double line) {
  return layer_norm(dim) + linear(dim, 3 * dim, false) + linear(dim, dim, true) +
         (2 * line - 1) * ((o.relative_bias ? heads : 0) + (o.position_sensitive ? 3 * dim / heads : 0)) +
         (o.layer_scale > 0 ? dim : 0);
}

double mlp(const AxialClassifierOptions& o, double dim) {
  const double hidden = std::round(o.mlp_ratio * dim);
  return layer_norm(dim) + linear(dim, hidden, true) + linear(hidden, dim, true) +
         (o.mlp_conv ? (3 * 3 + 1) * hidden : 0) + (o.layer_scale > 0 ? dim : 0);
}

}  // namespace

double element_count(const AxialClassifierOptions& o) {
  double sum = 0, rows = static_cast<double>(o.image_height), columns = static_cast<double>(o.image_width);
  const auto shrink = [&](double stride) {
    rows = std::ceil(rows / stride);
    columns = std::ceil(columns / stride);
  };
  const auto dim = [&](std::size_t stage) { return static_cast<double>(o.dim[stage]); };

  double in = static_cast<double>(o.channels);
  const auto convolution = [&](double out, double kernel, bool norm) {
    // of batch normalisation weight, bias, mean, variance and a counter in the place of the convolution's bias
    sum += kernel * kernel * in * out + (norm ? 4 * out + 1 : out);
    in = out;
  };
  if (o.stem == Stem::kPatch) {
    convolution(dim(0), static_cast<double>(o.patch_size), false);
    shrink(static_cast<double>(o.patch_size));
  } else {
    const bool norm = o.stem_norm == StemNorm::kBatch;
    for (const std::int64_t channels : o.stem_channels) {
      convolution(static_cast<double>(channels), 3, norm);
      shrink(2);
    }
    convolution(dim(0), 3, norm);
    shrink(static_cast<double>(o.stem_stride));
  }
  if (o.position) sum += (rows + columns) * dim(0);

  for (std::size_t stage = 0; stage < o.dim.size(); ++stage) {
    if (stage > 0) {
      sum += layer_norm(4 * dim(stage - 1)) + linear(4 * dim(stage - 1), dim(stage), false);
      shrink(2);
    }
    const double heads = static_cast<double>(o.heads[stage]);
    sum += static_cast<double>(o.depth[stage]) *
           (pass(o, dim(stage), heads, columns) + pass(o, dim(stage), heads, rows) + mlp(o, dim(stage)));
  }
  const double last = dim(o.dim.size() - 1);
  return sum + layer_norm(last) + linear(last, static_cast<double>(o.classes), true);
}

}  // namespace axial
