// The parts of an update that decide on the device: what is not finite changes nothing, and counters tell of it.

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "app/config/load.h"
#include "app/counted.h"
#include "app/train/build.h"
#include "app/train/control.h"
#include "app/train/graph.h"
#include "app/train/optimizer.h"
#include "app/train/report.h"
#include "app/train/self_check.h"
#include "app/train/state.h"
#include "app/train/step.h"
#include "app/train/trainer.h"
#include "app/train/watch.h"

namespace axial::test {
namespace {

using app::Control;
using app::Readout;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

TEST(SelfCheck, HoldsTheKernelsAgainstTheReferenceAndCatchesAnError) {
  const std::vector<std::string> model = {"model.dim=[16,24,32]", "model.heads=[2,3,4]", "model.depth=[1,1,2]",
                                          "model.mlp_ratio=3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), model.begin(), model.end());
    return app::load_config({}, more);
  };
  const std::pair<std::int64_t, std::int64_t> grid{7, 10};
  const std::vector<BlockCase> cases = app::self_check_cases(with({"train.precision=tf32"}), grid);
  ASSERT_EQ(cases.size(), 3u) << "one for each stage";
  EXPECT_EQ(cases[2].height, 2);
  EXPECT_EQ(cases[2].width, 3);
  EXPECT_EQ(cases[2].dim, 32);
  EXPECT_EQ(cases[2].hidden, 96);
  EXPECT_TRUE(cases[2].tf32);
  for (const char* precision : {"float32", "bfloat16", "float16"}) {
    for (const char* bias : {"true", "false"}) {
      const std::string rate = bias == std::string("true") ? "0.1" : "0";
      const app::Config config = with(
          {std::string("train.precision=") + precision, "train.self_check=always",
           std::string("model.relative_bias=") + bias, std::string("model.rotary=") + bias,
           std::string("model.float32_residual=") + bias, std::string("model.position_sensitive=") + bias,
           std::string("model.mlp_conv=") + bias, "model.layer_scale=" + rate, "model.projection_dropout=" + rate});
      const std::string said = app::self_check(config, grid, at::kCPU);
      EXPECT_EQ(said.rfind("self-check: kernels agree with the reference (3 cases, ", 0), 0u) << said;
      try {
        app::self_check(config, grid, at::kCPU, 0.05);
        ADD_FAILURE() << "the planted error was not caught: " << precision;
      } catch (const app::TrainError& error) {
        const std::string text = error.what();
        for (const char* part : {"self-check on cpu: ", "pass row [8, 7, 10, 16]", "likely miscompiled", "at most"}) {
          EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
        }
        EXPECT_EQ(text.find('\n'), std::string::npos);
      }
    }
  }
  // Where nothing else is in the way of the kernels.
  const app::Config residual =
      app::load_config({}, {"train.precision=bfloat16", "train.self_check=always", "model.float32_residual=true",
                            "model.dim=[64]", "model.heads=[4]", "model.depth=[1]"});
  for (const at::Device& device : {at::Device(at::kCPU), at::Device(at::kCUDA, 0)}) {
    if (device.is_cuda() && !at::hasCUDA()) continue;
    EXPECT_NE(app::self_check(residual, grid, device), "");
    EXPECT_THROW(app::self_check(residual, grid, device, 0.05), app::TrainError);
  }
  EXPECT_EQ(app::self_check(with({"train.self_check=auto"}), grid, at::kCPU, 1), "") << "auto: on a GPU";
  EXPECT_EQ(app::self_check(with({}), grid, at::kCPU, 1), "");
  EXPECT_EQ(app::self_check(with({"train.self_check=always", "model.backend=reference"}), grid, at::kCPU, 1), "");
}

TEST(ProgressLine, ShowsTheRateAndWhenItEndsWithinEightyColumns) {
  const std::string line = app::progress_line({98, 99, 117, 118, 0.5072, 0.92861, 2e-5, 64000, 125, 1 << 30});
  EXPECT_NE(line.substr(0, 79).find("  ETA 2:05  64000 images/s"), std::string::npos) << line;
  EXPECT_NE(line.find("  GPU 1.0 GiB  lr 2.00e-05"), std::string::npos) << line;
}

TEST(EpochLine, TellsTheEpochsTimeFromTheRuns) {
  app::EpochReport report;
  report.epoch = 7;
  report.images_per_second = 1000;
  report.epoch_seconds = 12;
  report.seconds = 84;
  const std::string line = report.line(9, false);
  EXPECT_NE(line.find("; 1000 images/s, epoch 12 s, run 1:24"), std::string::npos) << line;
  report.val_loss = report.val_top1 = report.best_top1 = 0.5;
  EXPECT_NE(report.line(9, true).find("(best 50.00 %)"), std::string::npos);
  EXPECT_NE(report.line(9, true, true).find("(best by loss 50.00 %)"), std::string::npos);
  EXPECT_EQ(app::duration(0.04), "0.0 s");
  EXPECT_EQ(app::duration(0.26), "0.3 s");
  EXPECT_EQ(app::duration(9.94), "9.9 s");
  EXPECT_EQ(app::duration(9.96), "10 s");
}

TEST(Counted, OneIsNotMany) {
  EXPECT_EQ(app::counted(1, "epoch"), "1 epoch");
  EXPECT_EQ(app::counted(2, "epoch"), "2 epochs");
  EXPECT_EQ(app::counted(0, "update"), "0 updates");
  EXPECT_EQ(app::counted(1, "batch"), "1 batch");
  EXPECT_EQ(app::counted(std::size_t{2}, "batch"), "2 batches");
  EXPECT_EQ(app::counted(2, "class"), "2 classes");
}

class Counting : public testing::Test {
 protected:
  Control& make(const std::vector<std::string>& overrides) {
    const app::Config config = app::load_config({}, overrides);
    control_.emplace(config.train, config.optim.clip_norm, at::kCPU);
    app::Progress progress;
    if (config.train.precision == "float16") progress.loss_scale = config.train.loss_scale;
    control_->load(progress);
    return *control_;
  }
  // An update of four samples, two of them hits; the verdict's `good`.
  bool update(double norm, double loss) {
    const std::int64_t row = row_.item<std::int64_t>();
    verdict_ = control_->judge(at::full({}, norm, at::kDouble), at::tensor({4 * loss, 2.0, 4.0}, at::kDouble), rates_, row_);
    const bool good = verdict_.good.item<bool>();
    EXPECT_EQ(verdict_.factor.item<double>(), static_cast<double>(row));
    EXPECT_EQ(verdict_.average.item<float>(), good ? static_cast<float>(row) / 2 : 0);
    EXPECT_EQ(row_.item<std::int64_t>(), row + (good ? 1 : 0));
    EXPECT_EQ(verdict_.skip.item<float>(), good ? 0 : 1);
    return good;
  }
  Readout read() { return Control::read(control_->values().const_data_ptr<double>()); }

  std::optional<Control> control_;
  app::Verdict verdict_;
  // Of update i: a factor of i, a weight of i / 2.
  at::Tensor row_ = at::zeros({1}, at::kLong),
             rates_ = at::stack({at::arange(4096, at::kDouble), at::arange(4096, at::kDouble).div(2)}, 1).contiguous();
};

TEST_F(Counting, StopsForGoodAtTheFirstThatIsNotFinite) {
  for (const auto& [norm, loss] : std::vector<std::pair<double, double>>{{kNan, kNan}, {kInf, 1}, {1, kInf}}) {
    make({});
    EXPECT_TRUE(update(3, 1.5));
    EXPECT_TRUE(update(5, 0.5));
    EXPECT_FALSE(update(norm, loss));
    for (int i = 0; i < 3; ++i) {
      const Readout r = read();
      EXPECT_TRUE(r.stopped);
      EXPECT_EQ(r.updates, 2);
      EXPECT_EQ(r.skipped, 0);
      EXPECT_EQ(std::isfinite(r.norm), std::isfinite(norm));
      EXPECT_EQ(std::isfinite(r.loss), std::isfinite(loss)) << "of the update that stopped, whatever came after it";
      EXPECT_EQ(r.loss_sum, 8);
      EXPECT_EQ(r.hits, 4);
      EXPECT_EQ(r.samples, 8);
      EXPECT_FALSE(update(i == 0 ? 1 : kNan, 1)) << "a sound update after the stop is none";
    }
  }
}

TEST_F(Counting, SkipsAndGoesOn) {
  make({"train.on_nonfinite=skip"});
  EXPECT_TRUE(update(1, 1));
  EXPECT_FALSE(update(kNan, kNan));
  EXPECT_EQ(read().good_in_row, 0);
  EXPECT_FALSE(update(kInf, 2));
  EXPECT_TRUE(update(1, 3));
  const Readout r = read();
  EXPECT_FALSE(r.stopped);
  EXPECT_EQ(r.updates, 2);
  EXPECT_EQ(r.skipped, 2);
  EXPECT_EQ(r.good_in_row, 1);
  EXPECT_EQ(r.loss_scale, 1);
  EXPECT_EQ(r.loss_sum, 4 * (1 + 2 + 3)) << "a loss that is a number counts, whatever its gradient was";
  EXPECT_EQ(r.samples, 12);
}

TEST_F(Counting, ClippingAndUnscalingAreOneDivisor) {
  make({"optim.clip_norm=2"});
  update(1, 1);
  EXPECT_EQ(verdict_.divisor.item<float>(), 1);
  update(6, 1);
  EXPECT_NEAR(verdict_.divisor.item<float>(), 3, 1e-6);
  make({"optim.clip_norm=2", "train.precision=float16", "train.loss_scale=1024"});
  update(6 * 1024, 1);
  EXPECT_NEAR(verdict_.divisor.item<float>(), 3 * 1024, 1e-2);
  EXPECT_EQ(read().norm, 6);
  make({"optim.clip_norm=0", "train.precision=float16", "train.loss_scale=1024"});
  update(6 * 1024, 1);
  EXPECT_EQ(verdict_.divisor.item<float>(), 1024);
  make({"optim.clip_norm=0"});
  update(6, 1);
  EXPECT_FALSE(verdict_.divisor.defined());
}

TEST_F(Counting, TheLossScaleFallsAtAnOverflowAndGrowsAfterManyGoodUpdates) {
  make({"train.precision=float16", "train.loss_scale=1024"});
  EXPECT_FALSE(update(kInf, 1));
  EXPECT_EQ(verdict_.divisor.item<float>(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(read().loss_scale, 512);
  EXPECT_EQ(read().skipped, 1);
  for (int i = 0; i < 1999; ++i) update(1, 1);
  EXPECT_EQ(read().loss_scale, 512);
  update(1, 1);
  EXPECT_EQ(read().loss_scale, 1024);
  EXPECT_EQ(read().good_in_row, 0);
  EXPECT_EQ(read().updates, 2000);
  // a loss that is not finite is no overflow
  EXPECT_FALSE(update(kNan, kNan));
  EXPECT_TRUE(read().stopped);
  EXPECT_EQ(read().loss_scale, 1024);
  EXPECT_FALSE(update(kInf, 1));
  EXPECT_EQ(read().loss_scale, 1024) << "nothing moves after the stop";
  EXPECT_EQ(read().skipped, 1);

  make({"train.precision=float16", "train.loss_scale=1"});
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(update(kInf, 1));
  EXPECT_EQ(read().loss_scale, 1.0 / 1024);
  EXPECT_FALSE(read().stopped);
  EXPECT_FALSE(update(kInf, 1));
  EXPECT_TRUE(read().stopped) << "there is nothing left to lower";
  EXPECT_EQ(read().skipped, 10);

  make({"train.precision=float16", "train.loss_scale=16777216"});
  for (int i = 0; i < 2001; ++i) update(1, 1);
  EXPECT_EQ(read().loss_scale, 16777216);
}

// Every tensor of an optimiser and its parameters.
std::vector<at::Tensor> all_of(const app::Optimizer& optimizer, const app::NamedTensors& parameters) {
  std::vector<at::Tensor> all;
  for (const auto& entry : parameters) all.push_back(entry.second.clone());
  for (const auto& entry : optimizer.state()) all.push_back(entry.second.clone());
  return all;
}

class Rules : public testing::TestWithParam<const char*> {
 protected:
  Rules() {
    config_.name = GetParam();
    config_.lr = config_.muon_lr = 0.1;
    config_.momentum = 0.9;
    config_.muon_momentum = 0.95;
    config_.betas = {0.9, 0.999};
    config_.eps = 1e-8;
    config_.weight_decay = config_.muon_weight_decay = 0.05;
    config_.layer_decay = 1;
  }
  app::NamedTensors make() {
    app::NamedTensors parameters;
    at::Generator generator = at::detail::createCPUGenerator(5);
    for (const char* name : {"blocks.0.row_qkv.weight", "blocks.0.mlp_up.weight", "blocks.0.mlp_down.weight",
                             "blocks.1.mlp_up.weight", "head.bias"}) {
      const bool bias = std::string(name) == "head.bias", qkv = std::string(name).find("qkv") != std::string::npos;
      at::Tensor p =
          at::randn(bias ? std::vector<std::int64_t>{8} : std::vector<std::int64_t>{qkv ? 12 : 8, 4}, generator);
      p.mutable_grad() = at::randn(p.sizes(), generator);
      parameters.emplace_back(name, p);
    }
    return parameters;
  }
  app::OptimConfig config_ = {};
  const at::Tensor one_ = at::ones({}, at::kDouble);
};

INSTANTIATE_TEST_SUITE_P(Optimizers, Rules, testing::Values("sgd", "adamw", "muon"));

TEST_P(Rules, ASkippedUpdateChangesNothing) {
  const app::NamedTensors parameters = make();
  app::Optimizer optimizer(config_, parameters);
  const at::Tensor go = at::zeros({}), skip = at::ones({}), divisor = at::full({}, 2.0f);
  optimizer.step({one_, divisor, go});
  const std::vector<at::Tensor> before = all_of(optimizer, parameters);
  std::vector<at::Tensor> sound;
  for (const auto& entry : parameters) {
    sound.push_back(entry.second.grad().clone());
    entry.second.grad().view({-1})[0] = kNan;
  }
  optimizer.step({one_, at::full({}, static_cast<float>(kNan)), skip});
  std::vector<at::Tensor> after = all_of(optimizer, parameters);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  // and the next one goes on as if there had been none
  for (std::size_t i = 0; i < sound.size(); ++i) parameters[i].second.grad().copy_(sound[i]);
  optimizer.step({one_, divisor, go});
  const app::NamedTensors others = make();
  app::Optimizer straight(config_, others);
  straight.step({one_, divisor, go});
  for (std::size_t i = 0; i < sound.size(); ++i) others[i].second.grad().copy_(sound[i]);
  straight.step({one_, divisor, go});
  after = all_of(optimizer, parameters);
  const std::vector<at::Tensor> expected = all_of(straight, others);
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(at::equal(after[i], expected[i])) << i;
}

TEST_P(Rules, TheDivisorDividesGradients) {
  const app::NamedTensors scaled = make(), plain = make();
  for (const auto& entry : scaled) entry.second.grad().mul_(8);
  app::Optimizer by_divisor(config_, scaled), without(config_, plain);
  for (int i = 0; i < 2; ++i) {
    for (std::size_t k = 0; k < plain.size(); ++k) scaled[k].second.grad().copy_(plain[k].second.grad() * 8);
    by_divisor.step({one_, at::full({}, 8.0f), at::zeros({})});
    without.step({one_, {}, {}});
  }
  const std::vector<at::Tensor> a = all_of(by_divisor, scaled), b = all_of(without, plain);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i], b[i], 1e-6, 1e-7)) << i;
}

TEST_P(Rules, TheNormIsOfAllGradients) {
  const app::NamedTensors parameters = make();
  const app::Optimizer optimizer(config_, parameters);
  double squares = 0;
  for (const auto& entry : parameters) squares += entry.second.grad().square().sum().item<double>();
  EXPECT_NEAR(optimizer.gradient_norm().item<double>(), std::sqrt(squares), 1e-5);
  parameters[1].second.grad().view({-1})[3] = kNan;
  EXPECT_TRUE(std::isnan(optimizer.gradient_norm().item<double>()));
}

TEST(Average, FollowsTheModelByTheWeightItIsGiven) {
  const app::NamedTensors model = {{"a", at::full({3}, 1.0f)}, {"n", at::zeros({}, at::kLong)}};
  app::Ema ema(0.99, model);
  model[0].second.fill_(2);
  model[1].second.fill_(7);
  ema.update(model, at::full({}, 0.25f));
  EXPECT_TRUE(at::equal(ema.tensors()[0].second, at::full({3}, 1.25f)));
  EXPECT_EQ(ema.tensors()[1].second.item<std::int64_t>(), 7) << "counts are copied";
  ema.update(model, at::zeros({}));
  EXPECT_TRUE(at::equal(ema.tensors()[0].second, at::full({3}, 1.25f)));
  EXPECT_DOUBLE_EQ(ema.weight(0), 0.9);
  EXPECT_DOUBLE_EQ(ema.weight(8), 1 - 9.0 / 18);
  EXPECT_DOUBLE_EQ(ema.weight(100000), 1 - 0.99);
}

TEST(Watch, GivesBackInOrderWhatWasThereWhenItWasAsked) {
  app::Watch watch(at::kCPU);
  const at::Tensor values = at::zeros({Control::kSlots}, at::kDouble);
  EXPECT_FALSE(watch.take(true));
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < app::Watch::kMost; ++i) {
      values.fill_(100 * round + static_cast<double>(i));
      watch.ask(values, {round, static_cast<std::int64_t>(i)});
    }
    EXPECT_EQ(watch.coming(), app::Watch::kMost);
    for (std::size_t i = 0; i < app::Watch::kMost; ++i) {
      const auto seen = watch.take(i % 2 == 0);
      ASSERT_TRUE(seen);
      EXPECT_EQ(seen->moment.batch, static_cast<std::int64_t>(i));
      EXPECT_EQ(seen->readout.updates, 100 * round + static_cast<std::int64_t>(i));
    }
  }
}

#if defined(AXIAL_WITH_CUDA)
TEST(Graphs, WhatCannotBeRecordedLeavesTheDeviceAsItWas) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  const app::OwnStream stream(at::Device(at::kCUDA, 0));
  const auto recorder = app::make_graph_recorder(at::Device(at::kCUDA, 0));
  at::Tensor x = at::ones({1000}, at::kCUDA);
  const auto add = [&] { x.add_(at::ones_like(x)); };
  const auto graph = recorder->record(add);
  EXPECT_EQ(x.sum().item<float>(), 1000) << "nothing has run";
  EXPECT_ANY_THROW((void)recorder->record([&] {
    add();
    (void)x.sum().item<float>();  // waits for the device
  }));
  EXPECT_EQ(x.sum().item<float>(), 1000);
  for (int i = 0; i < 3; ++i) graph->replay();
  add();
  EXPECT_EQ(x.sum().item<float>(), 5000);
  const auto later = recorder->record(add);
  later->replay();
  EXPECT_EQ(x.sum().item<float>(), 6000) << "and goes on recording";
}

// Where recording fails, in the first batch of an update or in a later one, training goes on as if nobody had tried.
TEST(Graphs, AStepThatCannotBeRecordedRuns) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  const at::Device device(at::kCUDA, 0);
  const app::OwnStream stream(device);
  constexpr int kNever = -1;
  const auto train = [&](bool graph, std::int64_t accumulate, int fails_in, bool mixed = false) {
    const app::Config config =
        app::load_config({std::string(AXIAL_SOURCE_DIR) + "/configs/smoke.yaml"},
                         {"data.batch_size=6", "train.accumulate=" + std::to_string(accumulate),
                          std::string("train.cuda_graph=") + (graph ? "true" : "false")});
    app::configure_libtorch(config.train);
    app::ImageSpec spec;
    spec.height = 20;
    spec.width = 16;
    spec.classes = {"a", "b", "c"};
    app::TrainingState state(config, spec, device);
    app::Step step(config, state, device);
    at::Generator generator = at::detail::createCPUGenerator(9);
    int batch = 0;
    step.observe([&](app::Step::Part) {
      if ((batch - 1) % accumulate == fails_in) (void)at::ones({}, device).item<float>();  // waits for the device
    });
    step.fill_rates(100);
    for (int i = 0; i < 8; ++i) {
      const auto next = [&] {
        batch += 1;
        data::Batch made;
        made.images = at::randn({6, 1, 20, 16}, generator).to(device);
        made.labels = at::arange(6, at::kLong).remainder(3).to(device);
        if (mixed) {
          made.partner_labels = made.labels.flip(0);
          made.weights = at::rand({6}, generator).to(device);
        }
        return made;
      };
      step.run(next, accumulate);
    }
    EXPECT_EQ(step.replays(), graph && fails_in == kNever) << step.graph_problem();
    EXPECT_EQ(step.graph_problem().empty(), !graph || fails_in == kNever);
    std::vector<at::Tensor> result = {state.control.values().cpu()};
    for (const auto& entry : state.tensors) result.push_back(entry.second.detach().cpu());
    for (const auto& entry : state.ema->tensors()) result.push_back(entry.second.cpu());
    for (const auto& entry : state.optimizer.state()) result.push_back(entry.second.cpu());
    return result;
  };
  for (const std::int64_t accumulate : {1, 2}) {
    for (const bool mixed : {false, true}) {
      const std::vector<at::Tensor> eager = train(false, accumulate, kNever, mixed);
      EXPECT_EQ(eager[0][kernels::kUpdates].item<double>(), 8);
      for (int fails_in = kNever; fails_in < accumulate; ++fails_in) {
        const std::vector<at::Tensor> other = train(true, accumulate, fails_in, mixed);
        ASSERT_EQ(eager.size(), other.size());
        for (std::size_t i = 0; i < eager.size(); ++i)
          EXPECT_TRUE(at::equal(eager[i], other[i])) << accumulate << " " << fails_in << " " << mixed << " " << i;
      }
    }
  }
}
#endif

}  // namespace
}  // namespace axial::test
