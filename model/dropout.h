// Everything that a forward pass draws at random, from the counter-based streams of kernels/philox.h:
// the same on every device and in every process, and no torch generator is involved.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/kernels.h"
#include "model/random.h"

namespace axial {

// Is anything drawn at rate p? Not at p = 0, and not without a random state (evaluation).
bool draws(double p, const RandomState& random);

// The kernels' description of one mask. It points into random.rng, which must live until the kernel
// has run. `lines_per_sample` turns the number of the first sample into that of the first line.
kernels::Dropout kernel_dropout(double p, const RandomState& random, std::uint64_t stream,
                                std::int64_t lines_per_sample);

// keep[lines, heads, L, L], uint8 on the device of random.rng: 1 where dropout keeps a probability.
at::Tensor dropout_mask(const kernels::Lines& lines, std::int64_t heads, double p, const RandomState& random,
                        std::uint64_t stream, std::int64_t lines_per_sample);

// Stochastic depth (Huang et al. 2016): scale[B] of `type`, 0 for a dropped sample, 1/(1-p) for a kept
// one. Undefined if nothing is drawn.
at::Tensor sample_scale(std::int64_t batch, double p, const RandomState& random, std::uint64_t stream,
                        at::ScalarType type);

// The output of a branch draws from its layer's stream this much higher, where no layer has streams of its own.
inline constexpr std::uint64_t kProjectionStreams = std::uint64_t{1} << 32;

// Dropout on the output of a branch, one draw for each channel of each token: scale[T, D] of `type`, 0 or 1/(1-p), T
// = batch * tokens. Undefined if nothing is drawn. Drawn from `stream` + kProjectionStreams.
at::Tensor projection_scale(std::int64_t batch, std::int64_t tokens, std::int64_t dim, double p,
                            const RandomState& random, std::uint64_t stream, at::ScalarType type);

// Dropout on features: scale[B, D] of `type`, 0 or 1/(1-p). Undefined if nothing is drawn.
at::Tensor feature_scale(std::int64_t batch, std::int64_t features, double p, const RandomState& random,
                         std::uint64_t stream, at::ScalarType type);

}  // namespace axial
