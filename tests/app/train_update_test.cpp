// What an update does to the weights: which of them decay, how far a matrix moves, what several batches come to.

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "app/checkpoint/safetensors.h"
#include "app/train/optimizer.h"
#include "app/train/state.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

app::OptimConfig rule(const std::string& name) {
  app::OptimConfig config = {};
  config.name = name;
  config.lr = config.muon_lr = 0.1;
  config.betas = {0.9, 0.999};
  config.eps = 1e-8;
  config.weight_decay = config.muon_weight_decay = 0.5;
  config.layer_decay = 1;
  return config;
}

const at::Tensor& one() {
  static const at::Tensor value = at::ones({}, at::kDouble);
  return value;
}

class Decay : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Optimizers, Decay, testing::Values("sgd", "adamw", "muon"));

// Without a gradient nothing else moves a parameter.
TEST_P(Decay, TakesMatricesAlone) {
  const auto parameter = [](at::IntArrayRef shape) {
    at::Tensor p = at::full(shape, 2.0f);
    p.mutable_grad() = at::zeros_like(p);
    return p;
  };
  const app::NamedTensors parameters = {{"stem.conv0.weight", parameter({4, 1, 3, 3})},
                                        {"blocks.0.mlp_up.weight", parameter({8, 4})},
                                        {"head.weight", parameter({3, 4})},
                                        {"blocks.0.attention.row_norm.weight", parameter({4})},
                                        {"blocks.0.mlp_up.bias", parameter({8})},
                                        {"row_pos", parameter({5, 1, 4})},
                                        {"blocks.0.mlp_conv.weight", parameter({8, 1, 3, 3})},
                                        {"blocks.0.mlp_conv.bias", parameter({8})},
                                        {"blocks.0.attention.row_relative_k", parameter({9, 2})},
                                        {"blocks.0.attention.row_bias", parameter({2, 9})},
                                        {"blocks.0.attention.row_scale", parameter({4})},
                                        {"blocks.0.mlp_scale", parameter({4})}};
  app::Optimizer optimizer(rule(GetParam()), parameters);
  optimizer.step({one(), {}, {}});
  for (const auto& [name, p] : parameters) {
    const bool decays = name == "stem.conv0.weight" || name == "blocks.0.mlp_up.weight" || name == "head.weight" ||
                        name == "blocks.0.mlp_conv.weight";
    EXPECT_TRUE(at::allclose(p, at::full_like(p, decays ? 2 * (1 - 0.1 * 0.5) : 2.0))) << name;
  }
}

// An entry of a tall matrix moves as far as one of its transpose: what is orthogonal has smaller entries there.
TEST(Muon, StepsDoNotDependOnTheMatrixStandingOrLying) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  const at::Tensor gradient = at::randn({16, 4}, generator);
  app::OptimConfig config = rule("muon");
  config.muon_weight_decay = 0;
  const auto moved = [&](const at::Tensor& g) {
    at::Tensor p = at::zeros_like(g, at::MemoryFormat::Contiguous);
    p.mutable_grad() = g.contiguous();
    app::Optimizer optimizer(config, {{"blocks.0.mlp_up.weight", p}});
    optimizer.step({one(), {}, {}});
    return p;
  };
  const at::Tensor tall = moved(gradient), wide = moved(gradient.t());
  EXPECT_TRUE(at::allclose(tall, wide.t() * std::sqrt(16.0 / 4.0), 1e-4, 1e-6));
  // Nearly orthogonal: rows of the wide one have the length of a step.
  const at::Tensor lengths = wide.norm(2, {1}) / 0.1;
  EXPECT_TRUE(lengths.gt(0.6).logical_and(lengths.lt(1.4)).all().item<bool>()) << lengths;
}

using Update = ProgramTest;

// The mean over the samples of an update, however many batches they come in.
TEST_F(Update, SeveralBatchesAreOneLargeOne) {
  const auto weights = [&](const std::string& run, const std::string& size, const std::string& accumulate) {
    const Outcome o = ProgramTest::run(small(
        run, {"data.batch_size=" + size, "train.accumulate=" + accumulate, "train.epochs=1", "model.stem_norm=none",
              "model.attention_dropout=0", "model.drop_path=0", "optim.name=sgd", "optim.lr=0.1", "optim.warmup=0"}));
    EXPECT_EQ(o.code, 0) << o.err;
    return app::read_safetensors(folder_ / run / "checkpoints" / "last.safetensors");
  };
  const app::SafetensorsFile whole = weights("whole", "48", "1"), parts = weights("parts", "16", "3");
  ASSERT_EQ(whole.metadata.at("axial.step"), "4");
  ASSERT_EQ(parts.metadata.at("axial.step"), "4");
  for (const auto& [name, tensor] : whole.tensors) {
    if (name.rfind("model.", 0) != 0) continue;
    EXPECT_TRUE(at::allclose(tensor, parts.tensors.at(name), 1e-3, 1e-5)) << name;
  }
}

// Masks of another batch are others because this counter is.
TEST_F(Update, EveryBatchAdvancesTheRandomState) {
  const Outcome o = run(small("run", {"train.accumulate=2", "train.epochs=2", "train.seed=9"}));
  ASSERT_EQ(o.code, 0) << o.err;
  const auto file = app::read_safetensors(folder_ / "run" / "checkpoints" / "last.safetensors");
  const at::Tensor& state = file.tensors.at("rng.state");
  EXPECT_EQ(state[0].item<std::int64_t>(), 9);
  EXPECT_EQ(state[1].item<std::int64_t>(), 2 * 192 / 32) << "batches so far";
}

}  // namespace
}  // namespace axial::test
