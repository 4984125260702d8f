// axial::model: a classifier's forward and backward.
#include <cstdio>

#include <ATen/ATen.h>
#include <axial/model/classifier.h>

int main() {
  axial::AxialClassifierOptions options;
  options.image_height = options.image_width = 12;
  options.classes = 3;
  options.dim = {16};
  options.heads = {2};
  axial::AxialClassifier model(options);
  const at::Tensor logits = model->forward(at::rand({2, 1, 12, 12}));
  logits.sum().backward();
  for (const auto& parameter : model->named_parameters()) {
    if (!parameter.value().grad().defined()) return std::fprintf(stderr, "no gradient: %s\n", parameter.key().c_str()), 1;
  }
  const bool good = logits.dim() == 2 && logits.size(0) == 2 && logits.size(1) == 3 && at::isfinite(logits).all().item<bool>();
  std::puts(good ? "classifier: ok" : "classifier: wrong");
  return good ? 0 : 1;
}
