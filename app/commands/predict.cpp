#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

#include <ATen/ATen.h>

#include "app/commands/commands.h"
#include "app/config/load.h"
#include "app/run/log.h"
#include "app/train/build.h"
#include "app/train/checks.h"
#include "app/train/report.h"
#include "app/train/state.h"
#include "data/image.h"
#include "model/classifier.h"

namespace axial::app {

namespace {

// A number, where no file has that name (which is said, since it may surprise): an index into the test set.
std::optional<std::int64_t> test_index(const std::string& input) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(input.data(), input.data() + input.size(), value);
  if (error != std::errc() || end != input.data() + input.size()) return std::nullopt;
  std::error_code ignored;
  if (!std::filesystem::exists(input, ignored)) return value;
  log::warning(input + ": taken as the file of that name, not as the test image of that number");
  return std::nullopt;
}

}  // namespace

int run_predict(const PredictArguments& a) {
  std::vector<std::string> inputs, overrides;
  for (const std::string& argument : a.inputs) (is_override(argument) ? overrides : inputs).push_back(argument);
  if (inputs.empty()) throw ConfigError("command line: input: expected image files or indices into the test set");
  LoadedModel loaded = load_model(a.checkpoint, a.device, overrides);
  const ImageSpec& spec = loaded.info.spec;
  const at::ScalarType dtype = compute_type(loaded.info.config.train.precision);
  data::Dataset test;  // loaded when the first index asks for it
  const at::Tensor mean = at::tensor(spec.mean, at::kFloat).view({-1, 1, 1});
  const at::Tensor std = at::tensor(spec.std, at::kFloat).view({-1, 1, 1});
  const auto top = std::min<std::int64_t>(a.top, static_cast<std::int64_t>(spec.classes.size()));
  at::NoGradGuard no_grad;
  int failures = 0;
  for (const std::string& input : inputs) {
    at::Tensor image;  // uint8 [channels, height, width]
    try {
      if (const auto index = test_index(input)) {
        if (test.size() == 0) {
          test = load_test(loaded.info.config, spec.classes);
          check_images(test, spec);
          log_notes(test);
        }
        if (*index < 0 || *index >= test.size()) {
          throw data::DataError(input + ": no such test image (0 to " + std::to_string(test.size() - 1) + ")");
        }
        image = data::image_of(test, *index);
      } else {
        image = data::read_image(input, picture_options(loaded.info.config, spec));  // as training did
      }
    } catch (const data::DataError& e) {  // the other inputs still get their answer
      log::error(e.what());
      failures += 1;
      continue;
    }
    const at::Tensor pixels = ((image.to(at::kFloat) / 255 - mean) / std).unsqueeze(0).to(loaded.device, dtype);
    const at::Tensor probability = loaded.model->forward(pixels).to(at::kFloat).softmax(1).cpu();
    const auto [values, indices] = probability[0].topk(top);
    for (std::int64_t i = 0; i < top; ++i) {
      char line[64];
      std::snprintf(line, sizeof line, "%.4f", values[i].item<double>());
      std::cout << input << '\t' << spec.classes[static_cast<std::size_t>(indices[i].item<std::int64_t>())] << '\t' << line
                << '\n';
    }
    std::cout.flush();
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace axial::app
