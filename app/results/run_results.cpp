#include "app/results/run_results.h"

#include <algorithm>
#include <set>

#include <ATen/core/Tensor.h>

#include "app/results/looks.h"
#include "app/results/picture.h"
#include "app/results/predictions.h"
#include "app/run/run_error.h"
#include "app/train/build.h"
#include "app/train/checks.h"
#include "app/train/state.h"

namespace axial::app {
namespace {

constexpr std::size_t kMistakes = 24, kRecognised = 4, kMistaken = 2;  // pictures of each kind
constexpr std::int64_t kSide = 224;                                    // pixels of a picture with a map, at least

// Smaller than the page shows it.
bool is_small(const at::Tensor& image) { return image.size(2) < 132; }

void add_mistakes(const data::Dataset& test, const std::vector<std::size_t>& wrong,
                  const std::vector<Prediction>& each, RunResults* r) {
  for (std::size_t i = 0; i < std::min(kMistakes, wrong.size()); ++i) {
    const Prediction& p = each[wrong[i]];
    Mistake m;
    m.index = static_cast<std::int64_t>(wrong[i]);
    const at::Tensor image = data::image_of(test, m.index);
    m.png = encode_png(as_rgb(image));
    m.small = is_small(image);
    m.label = test.classes[static_cast<std::size_t>(p.label)];
    m.predicted = test.classes[static_cast<std::size_t>(p.predicted)];
    m.confidence = p.confidence;
    r->mistakes.push_back(std::move(m));
  }
}

// The first images of several classes that were recognised, and the worst mistakes.
std::vector<std::size_t> to_look_at(const std::vector<Prediction>& each, const std::vector<std::size_t>& wrong) {
  std::vector<std::size_t> chosen;
  std::set<std::int64_t> seen;
  for (std::size_t i = 0; i < each.size() && chosen.size() < kRecognised; ++i) {
    if (each[i].label == each[i].predicted && seen.insert(each[i].label).second) chosen.push_back(i);
  }
  chosen.insert(chosen.end(), wrong.begin(),
                wrong.begin() + static_cast<std::ptrdiff_t>(std::min(kMistaken, wrong.size())));
  return chosen;
}

void evaluate_into(const std::filesystem::path& run, const std::string& device,
                   const std::vector<std::string>& overrides, RunResults* r) {
  LoadedModel loaded = load_model(run, device, overrides);
  const Config& config = loaded.info.config;
  const data::Dataset test = load_test(config, loaded.info.spec.classes);
  check_images(test, loaded.info.spec);
  r->checkpoint = resolve_checkpoint(run).string();
  data::Batches batches(test, batch_options(config, loaded.info.spec, false), loaded.device,
                        compute_type(config.train.precision));
  const SetPredictions predictions = predict_set(*loaded.model, batches, loaded.views, r->checkpoint);
  r->weights = loaded.info.has_ema ? "averaged weights" : "weights";
  if (const std::string views = describe_views(config.train.eval_tta); !views.empty()) r->weights += ", " + views;
  r->loss = predictions.evaluation.loss;
  r->scores = score(predictions.each, loaded.info.spec.classes);

  const std::vector<Prediction>& each = predictions.each;
  std::vector<std::size_t> wrong;
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (each[i].label != each[i].predicted) wrong.push_back(i);
  }
  std::stable_sort(wrong.begin(), wrong.end(),
                   [&](std::size_t a, std::size_t b) { return each[a].confidence > each[b].confidence; });
  r->mistakes_in_all = static_cast<std::int64_t>(wrong.size());
  add_mistakes(test, wrong, each, r);
  for (const std::size_t i : to_look_at(each, wrong)) {
    const at::Tensor image = data::image_of(test, static_cast<std::int64_t>(i));
    const Look look = look_at(loaded, image, enlarged(image, kSide));
    Attended a;
    a.index = static_cast<std::int64_t>(i);
    a.label = test.classes[static_cast<std::size_t>(each[i].label)];
    a.predicted = test.classes[static_cast<std::size_t>(each[i].predicted)];
    a.confidence = each[i].confidence;
    a.picture = encode_png(as_rgb(image));
    a.small = is_small(image);
    a.both = encode_png(look.both);
    a.rows = encode_png(look.rows);
    a.columns = encode_png(look.columns);
    a.both_peak = look.both_peak;
    a.rows_peak = look.rows_peak;
    a.columns_peak = look.columns_peak;
    r->attended.push_back(std::move(a));
  }
}

}  // namespace

RunResults run_results(const std::filesystem::path& run, const std::string& device,
                       const std::vector<std::string>& overrides) {
  RunResults r;
  try {
    evaluate_into(run, device, overrides, &r);
  } catch (const CheckpointError& error) {
    r.problem = error.what();
  } catch (const RunError& error) {
    r.problem = error.what();
  } catch (const data::DataError& error) {
    r.problem = error.what();
  } catch (const std::exception& error) {  // memory, libtorch: the other runs still get their part of the page
    const std::string text = error.what();
    r.problem = run.string() + ": " + text.substr(0, text.find('\n'));
  }
  return r;
}

}  // namespace axial::app
