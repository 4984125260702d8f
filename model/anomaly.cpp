#include "model/anomaly.h"

#include <mutex>

#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace axial {

namespace {

thread_local Anomaly* current = nullptr;

}  // namespace

// A backward on a GPU runs in a thread of autograd's.
struct Anomaly::Seen {
  std::mutex mutex;
  std::string first;

  void look(const std::string& what, const at::Tensor& value) {
    const c10::NoGradGuard no_grad;
    if (!value.defined() || at::isfinite(value).all().item<bool>()) return;
    const std::lock_guard lock(mutex);
    if (first.empty()) first = what;
  }
};

Anomaly::Anomaly(const torch::nn::Module& model) : seen_(std::make_shared<Seen>()) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    names_.emplace_back(item.value().get(), item.key());
  }
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    const auto hook = [seen = seen_, name = "the gradient of " + item.key()](const at::Tensor& gradient) {
      seen->look(name, gradient);
    };
    hooks_.emplace_back(item.value(), item.value().register_hook(hook));
  }
}

Anomaly::~Anomaly() {
  for (const auto& [parameter, hook] : hooks_) parameter.remove_hook(hook);
}

std::string Anomaly::take() {
  const std::lock_guard lock(seen_->mutex);
  return std::exchange(seen_->first, {});
}

AnomalyScope::AnomalyScope(Anomaly* anomaly) : before_(std::exchange(current, anomaly)) {}

AnomalyScope::~AnomalyScope() { current = before_; }

bool observed() { return current != nullptr; }

void observe(const torch::nn::Module* module, const char* part, const at::Tensor& value) {
  if (current == nullptr) return;
  std::string name;
  for (const auto& [known, its_name] : current->names_) {
    if (known == module) name = its_name;
  }
  if (*part != '\0') name += (name.empty() ? "" : ", ") + std::string(part);
  current->seen_->look("the output of " + name, value);
  if (!value.requires_grad()) return;
  // Made by the backward of whatever took this output.
  value.register_hook([seen = current->seen_, what = "the gradient with respect to the output of " + name](
                          const at::Tensor& gradient) { seen->look(what, gradient); });
}

}  // namespace axial
