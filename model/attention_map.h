// Where a classifier looks: attention rollout (Abnar and Zuidema 2020) for axial attention and mean pooling.
#pragma once

#include <ATen/core/Tensor.h>

namespace axial {

class AxialClassifierImpl;

// Each map is [B, H, W], float32, on the grid of tokens after the stem; not negative; each sums to 1 over an image,
// so that 1 / (H W) everywhere is "looks at nothing in particular".
struct AttentionMaps {
  at::Tensor both;     // through every pass
  at::Tensor rows;     // the column passes left out: what is fetched along rows alone
  at::Tensor columns;  // the row passes left out
};

// How much of each token arrives in the pooled output. Backwards from the mean pool, which gives every token of the
// last stage the same share: a pass leaves half of a token's share where it is (its residual) and spreads the other
// half along the line by the attention probabilities, averaged over heads; a token merge hands a share on to the
// tokens that were merged, in equal parts; norms, projections and MLPs work token by token and move nothing.
// Probabilities are recomputed from the weights with the operators of the reference backend, in evaluation mode and
// without gradients; the model's mode is put back. The map says what was mixed, not which class it speaks for.
AttentionMaps attention_rollout(AxialClassifierImpl& model, const at::Tensor& images);  // images as forward takes them

}  // namespace axial
