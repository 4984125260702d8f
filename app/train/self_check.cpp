#include "app/train/self_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "app/counted.h"
#include "app/train/trainer.h"

namespace axial::app {

namespace {

constexpr std::int64_t kTokens = 2048, kMostImages = 8;

}  // namespace

std::vector<BlockCase> self_check_cases(const Config& config, std::pair<std::int64_t, std::int64_t> grid) {
  std::vector<BlockCase> cases;
  auto [height, width] = grid;
  for (std::size_t stage = 0; stage < config.model.dim.size(); ++stage) {
    if (stage > 0) {  // as model/classifier.cpp merges tokens
      height = (height + 1) / 2;
      width = (width + 1) / 2;
    }
    BlockCase c;
    c.batch = std::clamp<std::int64_t>(kTokens / (height * width), 1, kMostImages);
    c.height = height;
    c.width = width;
    c.dim = config.model.dim[stage];
    c.heads = config.model.heads[stage];
    c.hidden = std::llround(config.model.mlp_ratio * static_cast<double>(c.dim));
    c.relative_bias = config.model.relative_bias;
    c.position_sensitive = config.model.position_sensitive;
    c.mlp_conv = config.model.mlp_conv;
    c.rotary = config.model.rotary;
    c.layer_scale = config.model.layer_scale > 0;
    c.projection_dropout = config.model.projection_dropout;
    c.float32_residual = config.model.float32_residual;
    c.type = compute_type(config.train.precision);
    c.tf32 = config.train.precision == "tf32";
    cases.push_back(c);
  }
  return cases;
}

std::string self_check(const Config& config, std::pair<std::int64_t, std::int64_t> grid, at::Device device,
                       double planted) {
  const std::string& wanted = config.train.self_check;
  if (config.model.backend != "fused" || wanted == "never" || (wanted == "auto" && !device.is_cuda())) return "";
  const auto start = std::chrono::steady_clock::now();
  const std::vector<BlockCase> cases = self_check_cases(config, grid);
  for (const BlockCase& c : cases) {
    for (GradcheckResult result : check_block(c, device, config.train.seed)) {
      result.max_error += std::exchange(planted, 0);
      if (result.max_error <= result.tolerance) continue;
      char numbers[96];
      std::snprintf(numbers, sizeof numbers, "relative error %.2g, at most %.2g expected", result.max_error,
                    result.tolerance);
      throw TrainError("self-check on " + device.str() + ": " + result.name + ": " + result.quantity +
                       " differs from the reference (" + numbers +
                       "); this build is likely miscompiled or made for another device: rebuild it and run axial "
                       "gradcheck --device " +
                       device.str() +
                       " (model.backend=reference trains without the kernels; train.self_check=never skips this)");
    }
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return "self-check: kernels agree with the reference (" + counted(cases.size(), "case") + ", " + seconds + ")";
}

}  // namespace axial::app
