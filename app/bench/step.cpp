#include "app/bench/step.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "app/config/load.h"
#include "app/train/build.h"
#include "app/train/freeze.h"
#include "app/train/state.h"
#include "app/train/step.h"
#include "app/train/watch.h"
#include "data/batches.h"

namespace axial::app::bench {

namespace {

constexpr std::int64_t kBatches = 8;  // in the set; training takes them in a new order each epoch
constexpr std::pair<Step::Part, const char*> kParts[] = {{Step::Part::kData, "data"},
                                                         {Step::Part::kForward, "forward"},
                                                         {Step::Part::kBackward, "backward"},
                                                         {Step::Part::kUpdate, "update"}};

// The configuration on a synthetic set of its own set's shape.
Config on_synthetic(const Config& config, const std::string& backend, bool graph) {
  Config made = config;
  DataConfig& data = made.data;
  const std::string& name = config.data.dataset;
  if (name.rfind("cifar", 0) == 0) {
    data.synthetic_channels = 3;
    data.synthetic_height = data.synthetic_width = 32;
    data.synthetic_classes = name == "cifar100" ? 100 : 10;
  } else if (name == "image_folder" || name == "image_list") {
    data.synthetic_channels = data.folder_channels;
    data.synthetic_height = data.folder_height;
    data.synthetic_width = data.folder_width;
  } else if (name != "synthetic") {  // MNIST and its kin
    data.synthetic_channels = 1;
    data.synthetic_height = data.synthetic_width = 28;
    data.synthetic_classes = 10;
  }
  data.dataset = "synthetic";
  data.synthetic_train = kBatches * data.batch_size * config.train.accumulate;
  data.synthetic_test = 1;
  data.validation_fraction = 0;
  data.train_limit = 0;
  made.augment.scale.clear();  // of files alone
  made.model.backend = backend;
  made.train.cuda_graph = graph;
  return made;
}

// Training as `axial train` does it, without an end, records or evaluations.
class Loop {
 public:
  Loop(const Config& config, const data::Dataset& set, at::Device device)
      : config_(config),
        spec_(image_spec(config, set)),
        batches_(set, batch_options(config, spec_, true), device, compute_type(config.train.precision)),
        state_(config, spec_, device),
        step_(config_, state_, device),
        watch_(device) {
    train_mode(*state_.model);
  }

  void run() {
    if (step_.needs_rates()) {
      look(0);
      step_.fill_rates(batches_.per_epoch() / config_.train.accumulate * config_.train.epochs);
    }
    step_.run([&] { return next(); }, config_.train.accumulate);
    watch_.ask(state_.control.values(), {});
    look(Watch::kMost - 1);
  }

  void look(std::size_t left) {
    while (const auto seen = watch_.take(watch_.coming() > left)) {
      state_.note(seen->readout);
      stopped_ = stopped_ || seen->readout.stopped;
    }
  }

  Step& step() { return step_; }
  bool stopped() const { return stopped_; }

 private:
  data::Batch next() {
    data::Batch batch = batches_.get(batch_ / batches_.per_epoch(), batch_ % batches_.per_epoch());
    batch_ += 1;
    return batch;
  }

  Config config_;
  ImageSpec spec_;
  data::Batches batches_;
  TrainingState state_;
  Step step_;
  Watch watch_;
  std::int64_t batch_ = 0;
  bool stopped_ = false;
};

// When each part of a step ended: events on a GPU, else the steady clock.
class Marks {
 public:
  explicit Marks(at::Device device) : device_(device) {}

  void add() {
    if (device_.is_cuda()) {
      events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with times
      events_.back().record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    } else {
      times_.push_back(std::chrono::steady_clock::now());
    }
  }
  // ms from mark i - 1 to mark i; everything before has happened.
  double before(std::size_t i) const {
    if (device_.is_cuda()) {
      events_[i].synchronize();
      return events_[i - 1].elapsedTime(events_[i]);
    }
    return std::chrono::duration<double, std::milli>(times_[i] - times_[i - 1]).count();
  }

 private:
  at::Device device_;
  std::vector<c10::Event> events_;
  std::vector<std::chrono::steady_clock::time_point> times_;
};

std::vector<std::pair<std::string, double>> measure_parts(Loop& loop, at::Device device, int repeats) {
  std::map<Step::Part, std::vector<double>> ms;
  Marks marks(device);
  std::vector<Step::Part> ended;   // by mark 1, 2, ...
  std::vector<std::size_t> steps;  // marks before each step's
  loop.step().observe([&](Step::Part part) {
    marks.add();
    ended.push_back(part);
  });
  marks.add();
  for (int i = 0; i < repeats; ++i) {
    steps.push_back(ended.size());
    loop.run();
  }
  steps.push_back(ended.size());
  loop.step().observe({});
  for (std::size_t step = 0; step + 1 < steps.size(); ++step) {
    std::map<Step::Part, double> sum;  // over the batches of a step
    for (std::size_t i = steps[step]; i < steps[step + 1]; ++i) sum[ended[i]] += marks.before(i + 1);
    for (const auto& [part, time] : sum) ms[part].push_back(time);
  }
  std::vector<std::pair<std::string, double>> medians;
  for (const auto& [part, name] : kParts) medians.emplace_back(name, summarise(ms[part]).median);
  return medians;
}

StepTimes measure(Machine& machine, const Config& given, const data::Dataset& set, const std::string& backend,
                  bool graph, int repeats) {
  StepTimes result;
  result.backend = backend;
  result.graph = graph;
  result.images = given.data.batch_size * given.train.accumulate;
  const Config config = on_synthetic(given, backend, graph);
  machine.release();
  try {
    const auto run = [&] {
      Loop loop(config, set, machine.device());
      std::vector<double> ms = machine.times([&](std::int64_t) { loop.run(); }, repeats);
      loop.look(0);
      if (loop.stopped()) {
        result.problem = "a loss or gradient was not finite";
      } else if (graph && !loop.step().replays()) {
        result.problem = "no graph: " + loop.step().graph_problem();
      } else {
        result.step = summarise(std::move(ms));
        if (!graph) result.parts = measure_parts(loop, machine.device(), repeats);
      }
      loop.look(0);
    };
    if (machine.device().is_cuda()) {
      result.peak_bytes = machine.peak_bytes(run);
    } else {
      run();  // nobody counts
    }
  } catch (const c10::OutOfMemoryError&) {
    result.problem = "out of memory";
  }
  machine.release();
  return result;
}

}  // namespace

std::vector<StepTimes> measure_steps(Machine& machine, const Config& config, const std::vector<std::string>& backends,
                                     int repeats) {
  const data::Dataset set = load_data(on_synthetic(config, "fused", false)).train;
  std::vector<StepTimes> all;
  for (const std::string& backend : backends) {
    if (machine.device().is_cuda()) all.push_back(measure(machine, config, set, backend, true, repeats));
    all.push_back(measure(machine, config, set, backend, false, repeats));
  }
  return all;
}

}  // namespace axial::app::bench
