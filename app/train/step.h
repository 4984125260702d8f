// One update of the weights: forward and backward of its batches, the optimiser, averages, counters. The host waits
// for nothing in it, and on a GPU it is replayed as CUDA graphs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>

#include "app/config/config.h"
#include "app/train/graph.h"
#include "app/train/state.h"
#include "data/batches.h"

namespace axial::app {

// While it lives, the thread's work on a GPU goes to a stream of its own: graphs cannot be recorded on the default
// one, and what autograd and the allocator remember of streams is the same for recorded and other steps. Nothing on a
// CPU.
class OwnStream {
 public:
  explicit OwnStream(at::Device device);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  std::optional<c10::StreamGuard> guard_;
};

class Step {
 public:
  enum class Part { kData, kForward, kBackward, kUpdate };

  // `state` outlives it. With config.train.cuda_graph, on a GPU, call run() under an OwnStream.
  Step(const Config& config, TrainingState& state, at::Device device);

  // An update from so many batches, which `next` gives one after the other.
  void run(const std::function<data::Batch()>& next, std::int64_t micro_batches);

  // Learning rates and weights of the average are read on the device, from a table of the updates to come. At its end
  // it is filled anew for those that follow the state's progress, which must be up to date then. updates: of the
  // whole schedule.
  bool needs_rates() const { return rates_left_ == 0; }
  void fill_rates(std::int64_t updates);

  bool replays() const;  // the step of full batches is recorded
  // Why it is not, although it was to be; empty: no reason.
  const std::string& graph_problem() const { return graph_problem_; }

  // Called at the end of each part of a step; of a replay, at the end of its data and of all of it.
  void observe(std::function<void(Part)> done) { done_ = std::move(done); }

 private:
  // What is recorded as a graph of its own: a step of one batch as a whole; of several, the batches and the rest.
  enum Piece { kWhole, kFirst, kNext, kFinish, kPieces };
  using Body = std::function<void(const data::Batch& batch)>;

  bool launch(Piece piece, const data::Batch& batch, bool may_replay, const Body& body);
  bool record(Piece piece, const data::Batch& batch, const Body& body);
  void begin();
  void forward_backward(const data::Batch& batch, bool first);
  void finish();
  void done(Part part) const {
    if (done_) done_(part);
  }

  const Config& config_;
  TrainingState& state_;
  at::Device device_;

  at::Tensor rates_;  // float64 [updates, 2]: factor of the learning rates, weight of the average
  at::Tensor row_;    // int64 [1]: the next update's
  std::int64_t rates_left_ = 0;

  at::Tensor seed_;  // float32 []: the gradient that a batch's loss starts with
  std::int64_t seed_batches_ = 0;
  at::Tensor group_sums_;                                   // float64 [3], of the update's batches
  std::vector<at::Tensor> statistics_, statistics_before_;  // running ones, which a skipped update must not keep

  bool graphs_ = false;  // wanted, and nothing has spoken against them
  std::string graph_problem_;
  std::unique_ptr<GraphRecorder> recorder_;
  std::array<std::unique_ptr<Graph>, kPieces> recorded_;
  std::array<std::int64_t, kPieces> runs_{};
  // What the graphs read: a batch is copied here. (A loader that is given these to write to saves the copy.)
  data::Batch inputs_;
  std::vector<at::Tensor> gradients_;  // where the graphs write them, in the order of the model's parameters
  bool gradients_recorded_ = false;    // the parameters' gradients are those

  std::function<void(Part)> done_;
};

}  // namespace axial::app
