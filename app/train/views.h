// Test-time augmentation (train.eval_tta): several views of an image, and what a model says of all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace axial {
class AxialClassifierImpl;
}

namespace axial::app {

struct View {
  std::int64_t down = 0, right = 0;  // pixels that the picture is moved by
  bool mirrored = false;             // left to right, afterwards
};
using Views = std::vector<View>;

// As it is first; translate: a pixel up and left, a pixel down and right (Jordan 2024); flip: the mirror image of
// each.
Views views_of(const std::string& eval_tta);

// "test-time augmentation (train.eval_tta=flip): mean logits of 2 views"; empty where there is one view alone.
std::string describe_views(const std::string& eval_tta);

// images [n, C, H, W] of any type; what comes in at an edge repeats the edge.
at::Tensor seen_from(const at::Tensor& images, const View& view);

// The mean over views of the logits (not of the probabilities), as timm and Jordan (2024) average: float32 [n,
// classes]. Of one view alone what the model says, in its own type. One view after another: memory is that of one.
at::Tensor logits_of(AxialClassifierImpl& model, const at::Tensor& images, const Views& views);

}  // namespace axial::app
