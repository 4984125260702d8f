#include "app/train/views.h"

#include <ATen/ATen.h>

#include "model/classifier.h"

namespace axial::app {

Views views_of(const std::string& eval_tta) {
  Views views = {{}};
  if (eval_tta == "translate" || eval_tta == "flip_translate") views.insert(views.end(), {{-1, -1}, {1, 1}});
  if (eval_tta == "flip" || eval_tta == "flip_translate") {
    const Views straight = views;
    for (View view : straight) {
      view.mirrored = true;
      views.push_back(view);
    }
  }
  return views;
}

std::string describe_views(const std::string& eval_tta) {
  const std::size_t count = views_of(eval_tta).size();
  if (count == 1) return "";
  return "test-time augmentation (train.eval_tta=" + eval_tta + "): mean logits of " + std::to_string(count) +
         " views";
}

at::Tensor seen_from(const at::Tensor& images, const View& view) {
  at::Tensor seen = images;
  const auto move = [&](std::int64_t dim, std::int64_t by) {
    if (by == 0) return;
    const std::int64_t size = images.size(dim);
    const at::Tensor from = at::arange(size, images.options().dtype(at::kLong)) - by;
    seen = seen.index_select(dim, from.clamp(0, size - 1));
  };
  move(2, view.down);
  move(3, view.right);
  return view.mirrored ? seen.flip({3}) : seen;
}

at::Tensor logits_of(AxialClassifierImpl& model, const at::Tensor& images, const Views& views) {
  if (views.size() == 1) return model.forward(seen_from(images, views[0]));
  at::Tensor sum;
  for (const View& view : views) {
    const at::Tensor logits = model.forward(seen_from(images, view)).to(at::kFloat);
    sum = sum.defined() ? sum + logits : logits;
  }
  return sum / static_cast<double>(views.size());
}

}  // namespace axial::app
