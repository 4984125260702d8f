#include "app/bench/measure.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "app/bench/floor.h"
#include "model/attention.h"

namespace axial::app::bench {

namespace {

constexpr std::int64_t kMostBuffers = 128;

// The layer and its sets of tensors. Inputs and results of the i-th call belong to set i modulo their number, so that
// a call finds in the cache nothing of its own tokens.
class Layer {
 public:
  Layer(const Machine& machine, const Shape& shape, const Type& type, Backend backend)
      : module_(options(shape, backend)) {
    module_->to(machine.device());
    parameters_ = module_->parameters();
    const std::int64_t bytes =
        shape.batch * shape.height * shape.width * shape.dim * static_cast<std::int64_t>(c10::elementSize(type.type));
    // The forward touches two tensors of a set, x and y; between two uses of a set lies twice the cache.
    const std::int64_t past_cache = 2 * static_cast<std::int64_t>(machine.traits().cache_bytes) / (2 * bytes) + 1;
    const std::int64_t buffers = std::clamp<std::int64_t>(past_cache, 2, kMostBuffers);
    const auto place = at::TensorOptions(machine.device()).dtype(type.type);
    for (std::int64_t i = 0; i < buffers; ++i) {
      x_.push_back(at::randn({shape.batch, shape.height, shape.width, shape.dim}, place).requires_grad_());
      dy_.push_back(at::randn_like(dy_.empty() ? x_[0].detach() : dy_[0]));
    }
    y_.resize(x_.size());
  }

  std::int64_t buffers() const { return static_cast<std::int64_t>(x_.size()); }

  void forward(std::int64_t i) {
    const at::NoGradGuard no_grad;
    y_[set(i)] = module_->forward(x_[set(i)]);
  }

  void both(std::int64_t i) {
    drop_gradients(set(i));
    module_->forward(x_[set(i)]).backward(dy_[set(i)]);
  }

  // Results go, inputs stay.
  void drop_results() {
    for (std::size_t i = 0; i < x_.size(); ++i) {
      y_[i] = at::Tensor();
      drop_gradients(i);
    }
  }

 private:
  static AxialAttentionOptions options(const Shape& shape, Backend backend) {
    AxialAttentionOptions options;
    options.dim = shape.dim;
    options.heads = shape.heads;
    options.backend = backend;
    return options;
  }

  std::size_t set(std::int64_t i) const { return static_cast<std::size_t>(i) % x_.size(); }

  void drop_gradients(std::size_t set) {
    for (at::Tensor& p : parameters_) p.mutable_grad() = at::Tensor();
    x_[set].mutable_grad() = at::Tensor();
  }

  AxialAttention module_;
  std::vector<at::Tensor> parameters_, x_, dy_, y_;
};

Times time(Machine& machine, Layer& layer, const Call& call, int repeats) {
  Times times;
  times.eager = summarise(machine.times(call, repeats));
  layer.drop_results();
  if (const auto graph = machine.graph_times(call, layer.buffers(), repeats)) {
    times.graph_problem = graph->problem;
    if (graph->problem.empty()) {
      times.replay = summarise(graph->replays);
      times.amortised = summarise(graph->amortised);
    }
  }
  layer.drop_results();
  machine.release();
  return times;
}

}  // namespace

double Times::fastest() const {
  double ms = eager.median;
  if (replay) ms = std::min(ms, replay->median);
  if (amortised) ms = std::min(ms, amortised->median);
  return ms;
}

Measurement measure(Machine& machine, const Shape& shape, const Type& type, Backend backend, int repeats) {
  select_products(type);
  Measurement m;
  m.shape = shape;
  m.type = type;
  m.backend = backend;
  m.kernel = backend == Backend::kFused ? describe_pass(shape.batch, shape.height, shape.width, shape.dim,
                                                        shape.heads, type.type, machine.device())
                                        : "ATen operators";
  try {
    Layer layer(machine, shape, type, backend);
    m.buffers = layer.buffers();
    m.forward = time(
        machine, layer, [&](std::int64_t i) { layer.forward(i); }, repeats);
    m.both = time(
        machine, layer, [&](std::int64_t i) { layer.both(i); }, repeats);
    m.peak_bytes = machine.peak_bytes([&] { layer.both(0); });
  } catch (const c10::OutOfMemoryError&) {
    m.problem = "out of memory";
  }
  machine.release();
  return m;
}

}  // namespace axial::app::bench
