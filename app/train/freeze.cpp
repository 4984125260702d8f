#include "app/train/freeze.h"

#include <algorithm>
#include <vector>

#include <fnmatch.h>

#include "app/config/load.h"

#include "model/classifier.h"

namespace axial::app {

namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else if (c != ' ') {
      parts.back() += c;
    }
  }
  if (parts == std::vector<std::string>{""}) parts.clear();  // no name is empty else (config/schema.cpp)
  return parts;
}

bool fits(const std::string& pattern, const std::string& name) {
  const bool inside =
      name.size() > pattern.size() && name.compare(0, pattern.size(), pattern) == 0 && name[pattern.size()] == '.';
  return inside || ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace

void freeze(AxialClassifierImpl& model, const std::string& patterns) {
  const auto parameters = model.named_parameters(true);
  for (const std::string& pattern : split(patterns)) {
    bool any = false;
    for (const auto& item : parameters) {
      if (!fits(pattern, item.key())) continue;
      at::Tensor(item.value()).set_requires_grad(false);
      any = true;
    }
    if (any) continue;
    std::string names;  // the modules at the top: enough to see how names are made
    for (const auto& item : parameters) {
      const std::string top = item.key().substr(0, item.key().find('.'));
      if (names.find(top) == std::string::npos) names += (names.empty() ? "" : ", ") + top;
    }
    throw ConfigError("train.freeze: " + pattern + " is the name of no parameter; names begin with " + names);
  }
  const auto left = model.parameters(true);
  if (std::none_of(left.begin(), left.end(), [](const at::Tensor& p) { return p.requires_grad(); }))
    throw ConfigError("train.freeze: " + patterns + " leaves nothing to train");
}

void train_mode(AxialClassifierImpl& model) {
  model.train();
  for (const auto& module : model.modules()) {
    const auto* norm = module->as<torch::nn::BatchNorm2d>();
    if (norm != nullptr && !norm->weight.requires_grad()) module->eval();
  }
}

}  // namespace axial::app
