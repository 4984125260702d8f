#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "app/commands/commands.h"
#include "app/config/load.h"
#include "app/results/looks.h"
#include "app/results/prediction_writer.h"
#include "app/results/predictions.h"
#include "app/results/test_images.h"
#include "app/run/log.h"
#include "app/train/build.h"
#include "app/train/state.h"
#include "data/image.h"
#include "data/listing.h"
#include "model/classifier.h"

namespace axial::app {

namespace {

// Inputs in the order given, answered batch by batch.
class Predictor {
 public:
  Predictor(LoadedModel& loaded, PredictionWriter& writer, std::int64_t top)
      : model_(loaded), spec_(loaded.info.spec), writer_(writer), test_(loaded.info) {
    top_ = std::min<std::int64_t>(top, static_cast<std::int64_t>(spec_.classes.size()));
    batch_ = static_cast<std::size_t>(loaded.info.config.data.eval_batch_size);
    mean_ = at::tensor(spec_.mean, at::kFloat).view({-1, 1, 1});
    std_ = at::tensor(spec_.std, at::kFloat).view({-1, 1, 1});
  }

  // A file, a folder, or the number of a test image.
  void add(const std::string& input) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(input, ignored)) {
      take(input);
      return;
    }
    try {
      std::vector<std::filesystem::path> others;
      const std::vector<std::filesystem::path> files = data::list_images(input, &others);
      if (files.empty()) throw data::DataError(input + ": no .png, .jpg or .jpeg files in it");
      if (!others.empty()) {
        log::warning(input + ": " + std::to_string(others.size()) + " other files are left out, the first is " +
                     std::min_element(others.begin(), others.end())->string());
      }
      for (const auto& file : files) take(file.string());
    } catch (const data::DataError& e) {
      fail(e.what());
    }
  }

  void flush() {
    const auto count = static_cast<std::int64_t>(inputs_.size());
    if (count == 0) return;
    std::vector<std::optional<std::string>> errors(inputs_.size());
    at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        if (images_[i].defined()) continue;
        try {
          images_[i] = file_image(inputs_[i], model_.info);
        } catch (const data::DataError& e) {  // the other inputs still get their answer
          errors[i] = e.what();
        }
      }
    });
    std::vector<std::string> names;
    std::vector<at::Tensor> good;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (errors[i]) {
        fail(*errors[i]);
      } else {
        names.push_back(inputs_[i]);
        good.push_back((images_[i].to(at::kFloat) / 255 - mean_) / std_);
      }
    }
    inputs_.clear();
    images_.clear();
    if (!good.empty()) answer(names, at::stack(good));
  }

  // One input less; the others still get their answer.
  void fail(const std::string& what) {
    log::error(what);
    failures_ += 1;
  }
  int failures() const { return failures_; }

 private:
  void take(const std::string& input) {
    at::Tensor image;  // uint8 [channels, height, width]; undefined: to be read from the file
    try {
      if (const auto index = test_index(input)) image = test_.get(*index);
    } catch (const data::DataError& e) {
      fail(e.what());
      return;
    }
    inputs_.push_back(input);
    images_.push_back(image);
    if (inputs_.size() >= batch_) flush();
  }

  void answer(const std::vector<std::string>& names, const at::Tensor& pixels) {
    const at::ScalarType type = compute_type(model_.info.config.train.precision);
    const at::Tensor logits =
        logits_of(*model_.model, pixels.to(model_.device, type), model_.views).to(at::kCPU, at::kFloat);
    const auto [values, indices] = logits.softmax(1).topk(top_, 1);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      if (first_not_finite(logits.narrow(0, at, 1)) == 0) {
        fail(names[i] + ": " + kOverflow);
        continue;
      }
      std::vector<RankedClass> classes;
      for (std::int64_t k = 0; k < top_; ++k) {
        classes.push_back({spec_.classes[static_cast<std::size_t>(indices[at][k].item<std::int64_t>())],
                           values[at][k].item<double>()});
      }
      writer_.write(names[i], classes);
    }
    writer_.flush();
  }

  LoadedModel& model_;
  const ImageSpec& spec_;
  PredictionWriter& writer_;
  std::int64_t top_ = 1;
  std::size_t batch_ = 1;
  at::Tensor mean_, std_;  // [channels, 1, 1]
  TestImages test_;
  std::vector<std::string> inputs_;
  std::vector<at::Tensor> images_;
  int failures_ = 0;
};

constexpr std::size_t kLongestPath = 1 << 16;  // bytes; what never ends a line is no list

// The next line without its end; false at the end of the input, or where the line is too long to be a path.
bool next_line(std::istream& in, std::string& line) {
  line.clear();
  for (int c = in.get(); c != std::istream::traits_type::eof(); c = in.get()) {
    if (c == '\n') return true;
    if (line.size() == kLongestPath) return false;
    line += static_cast<char>(c);
  }
  return !line.empty();
}

void add_from_standard_input(Predictor& predictor) {
  std::size_t number = 0;
  bool any = false;
  for (std::string line; next_line(std::cin, line) || !line.empty();) {
    number += 1;
    if (line.size() == kLongestPath) {
      predictor.fail("standard input, line " + std::to_string(number) + ": is longer than " +
                     std::to_string(kLongestPath) + " bytes, expected a path; what follows is not read");
      return;
    }
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find('\0') != std::string::npos) {
      any = true;
      predictor.fail("standard input, line " + std::to_string(number) + ": holds a zero byte, expected a path");
    } else if (!line.empty()) {
      any = true;
      predictor.add(line);
    }
  }
  if (std::ferror(stdin) != 0) {
    predictor.fail(std::string("standard input: cannot be read: ") + std::strerror(errno));
  } else if (!any) {
    predictor.fail("standard input: is empty, expected paths of pictures, one a line");
  }
}

}  // namespace

int run_predict(const PredictArguments& a) {
  std::vector<std::string> inputs, overrides;
  for (const std::string& argument : a.inputs) (is_override(argument) ? overrides : inputs).push_back(argument);
  if (inputs.empty()) throw ConfigError("command line: input: expected image files or indices into the test set");
  LoadedModel loaded = load_model(a.checkpoint, a.device, overrides);
  at::NoGradGuard no_grad;
  PredictionWriter writer(std::cout, a.format);
  Predictor predictor(loaded, writer, a.top);
  for (const std::string& input : inputs) {
    if (input == "-") {
      add_from_standard_input(predictor);
    } else {
      predictor.add(input);
    }
  }
  predictor.flush();
  return predictor.failures() == 0 ? 0 : 1;
}

}  // namespace axial::app
