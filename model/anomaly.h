// Where a forward or backward pass first leaves the finite numbers: the layer, not only the step.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace axial {

// While an AnomalyScope lives, every layer of the model shows its output here, and autograd the gradient of each
// output and parameter; the first that holds an infinity or NaN is remembered. Each look waits for the device and
// reads the tensor once more: about two dozen small reductions a block, for runs that went wrong before.
class Anomaly {
 public:
  explicit Anomaly(const torch::nn::Module& model);  // outlives no parameter
  ~Anomaly();
  Anomaly(const Anomaly&) = delete;
  Anomaly& operator=(const Anomaly&) = delete;

  // Since the last take: "the output of blocks.0.attention, row pass", "the gradient of head.weight", ...; "" where
  // all was finite.
  std::string take();

 private:
  friend class AnomalyScope;
  friend void observe(const torch::nn::Module* module, const char* part, const at::Tensor& value);
  struct Seen;
  std::shared_ptr<Seen> seen_;  // hooks hold it, too
  std::vector<std::pair<const torch::nn::Module*, std::string>> names_;
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
};

// Of this thread; null: nothing is observed.
class AnomalyScope {
 public:
  explicit AnomalyScope(Anomaly* anomaly);
  ~AnomalyScope();
  AnomalyScope(const AnomalyScope&) = delete;
  AnomalyScope& operator=(const AnomalyScope&) = delete;

 private:
  Anomaly* before_;
};

// For layers: `value` is what `part` of the module ("row pass"; "": the module) has made. Without a scope it does
// nothing.
void observe(const torch::nn::Module* module, const char* part, const at::Tensor& value);
bool observed();  // is there a scope?

}  // namespace axial
