#include <chrono>
#include <iostream>

#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/run/log.h"
#include "app/train/build.h"
#include "app/train/evaluate.h"
#include "app/train/state.h"

namespace axial::app {

int run_eval(const EvalArguments& a) {
  LoadedModel loaded = load_model(a.checkpoint, a.device, a.overrides);
  const Config& config = loaded.info.config;
  const data::Dataset test = load_test(config);
  check_images(test, loaded.info.spec);
  data::Batches batches(test, batch_options(config, loaded.info.spec, false), loaded.device,
                        compute_type(config.train.precision));
  log::info("evaluating " + resolve_checkpoint(a.checkpoint).string() + " on " + std::to_string(test.size()) +
            " test images of " + config.data.dataset + ", on " + loaded.device.str());
  const auto start = std::chrono::steady_clock::now();
  const Evaluation e = evaluate(loaded.model, batches);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const nlohmann::ordered_json line = {{"top1", e.top1},
                                       {"loss", e.loss},
                                       {"epochs", loaded.info.progress.epoch},
                                       {"images_per_second", static_cast<double>(e.samples) / seconds},
                                       {"train_seconds", loaded.info.progress.train_seconds},
                                       {"run", a.checkpoint}};
  std::cout << line.dump() << std::endl;
  return 0;
}

}  // namespace axial::app
