#include "model/attention_map.h"

#include <vector>

#include <ATen/ATen.h>

#include "model/classifier.h"
#include "model/reference.h"

namespace axial {
namespace {

constexpr double kResidual = 0.5;  // of a token's share that a pass leaves in place

// What happened to the tokens on the way up: a pass along an axis, or a merge of `height` x `width` tokens.
struct Step {
  bool is_pass = true;
  Axis axis = Axis::kRow;
  at::Tensor probabilities;  // [B, N, L, L], mean over heads, float32
  std::int64_t height = 0, width = 0;
};

// share[B, H, W] -> what the tokens before the pass contributed to it.
at::Tensor through_pass(const at::Tensor& share, const Step& step) {
  const bool rows = step.axis == Axis::kRow;
  const at::Tensor lines = rows ? share : share.transpose(1, 2);                             // [B, N, L]
  const at::Tensor fetched = at::matmul(lines.unsqueeze(2), step.probabilities).squeeze(2);  // [B, N, L]
  const at::Tensor mixed = lines * kResidual + fetched * (1 - kResidual);
  return rows ? mixed : mixed.transpose(1, 2);
}

// The share of a merged token goes to the tokens in it: two by two, fewer at an odd edge, which was padded with
// zeros.
at::Tensor through_merge(const at::Tensor& share, std::int64_t height, std::int64_t width) {
  const auto spread = [&](const at::Tensor& t) {
    return t.repeat_interleave(2, 1).repeat_interleave(2, 2).slice(1, 0, height).slice(2, 0, width);
  };
  const at::Tensor ones = at::ones({1, height, width}, share.options());
  const at::Tensor padded = at::constant_pad_nd(ones, {0, width % 2, 0, height % 2});
  const at::Tensor tokens = at::avg_pool2d(padded, {2, 2}) * 4;  // of each merged token, how many are real
  return spread(share / tokens);
}

}  // namespace

AttentionMaps attention_rollout(AxialClassifierImpl& model, const at::Tensor& images) {
  const at::NoGradGuard no_grad;
  const bool training = model.is_training();
  model.eval();
  std::vector<Step> steps;
  at::Tensor x = model.embed(images);  // [B, H, W, D]
  const at::ScalarType arithmetic = model.arithmetic(images);
  for (std::size_t stage = 0; stage < model.stages().size(); ++stage) {
    if (stage > 0) {
      Step merge;
      merge.is_pass = false;
      merge.height = x.size(1);
      merge.width = x.size(2);
      steps.push_back(merge);
      TokenMerge module = model.merge(stage - 1);
      x = module->forward(x, arithmetic);
    }
    for (AxialBlock block : model.stages()[stage]) {
      AxialAttention attention = block->attention();
      const AxialAttentionOptions& o = attention->options();
      at::Tensor between = x;
      for (const Axis axis : {o.first, o.first == Axis::kRow ? Axis::kColumn : Axis::kRow}) {
        const PassOptions pass = attention->options_of(axis, between, {}, arithmetic);
        Step step;
        step.axis = axis;
        step.probabilities =
            reference_pass_probabilities(between, attention->parameters_of(axis), pass).to(at::kFloat).mean(2);
        steps.push_back(step);
        if (axis == o.first) between = reference_pass(between, attention->parameters_of(axis), pass);
      }
      std::vector<AxialBlock> alone{block};
      x = run_blocks(alone, x, {}, arithmetic);
    }
  }
  model.train(training);

  const at::Tensor pooled = at::full({x.size(0), x.size(1), x.size(2)},
                                     1.0 / static_cast<double>(x.size(1) * x.size(2)), x.options().dtype(at::kFloat));
  const auto back = [&](bool rows, bool columns) {
    at::Tensor share = pooled;
    for (std::size_t i = steps.size(); i-- > 0;) {
      const Step& step = steps[i];
      if (!step.is_pass) {
        share = through_merge(share, step.height, step.width);
      } else if (step.axis == Axis::kRow ? rows : columns) {
        share = through_pass(share, step);
      }
    }
    return share.contiguous();
  };
  return {back(true, true), back(true, false), back(false, true)};
}

}  // namespace axial
