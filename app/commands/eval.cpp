#include <chrono>
#include <iostream>
#include <optional>

#include "app/commands/commands.h"
#include "app/commands/result.h"
#include "app/results/predictions.h"
#include "app/run/log.h"
#include "app/run/output_file.h"
#include "app/train/build.h"
#include "app/train/checks.h"
#include "app/train/report.h"
#include "app/train/state.h"

namespace axial::app {

int run_eval(const EvalArguments& a) {
  std::optional<OutputFile> json;
  if (!a.json.empty()) json.emplace(a.json, std::vector<std::filesystem::path>{resolve_checkpoint(a.checkpoint)});
  LoadedModel loaded = load_model(a.checkpoint, a.device, a.overrides);
  const Config& config = loaded.info.config;
  if (json) check_result(*json, config);
  const data::Dataset test = load_test(config, loaded.info.spec.classes);
  check_images(test, loaded.info.spec);
  log_notes(test);
  data::Batches batches(test, batch_options(config, loaded.info.spec, false), loaded.device,
                        compute_type(config.train.precision));
  const std::string checkpoint = resolve_checkpoint(a.checkpoint).string();
  log::info("evaluating " + checkpoint + " on " + std::to_string(test.size()) + " test images of " +
            config.data.dataset + ", on " + loaded.device.str());
  const auto start = std::chrono::steady_clock::now();
  const SetPredictions predictions = predict_set(*loaded.model, batches, loaded.views, checkpoint);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const Evaluation& e = predictions.evaluation;
  const Scores scores = score(predictions.each, loaded.info.spec.classes);
  for (const std::string& line : scores_table(scores)) log::info(line);
  if (json) {
    Json document = {{"checkpoint", checkpoint}, {"dataset", config.data.dataset}, {"loss", rounded(e.loss, 6)}};
    document.update(scores_json(scores));
    if (loaded.views.size() > 1) document["eval_tta"] = config.train.eval_tta;
    json->write(document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  Json result = {{"top1", rounded(e.top1, 6)},
                 {"loss", rounded(e.loss, 4)},
                 {"epochs", loaded.info.progress.epoch},
                 {"images_per_second", rounded(static_cast<double>(e.samples) / seconds, 1)},
                 {"train_seconds", rounded(loaded.info.progress.train_seconds, 1)},
                 {"run", a.checkpoint},
                 {"checkpoint", checkpoint}};
  if (loaded.views.size() > 1) result["eval_tta"] = config.train.eval_tta;
  print_result(result);
  return 0;
}

}  // namespace axial::app
