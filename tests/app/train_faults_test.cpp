// What goes wrong while training, and what is left afterwards.

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "app/checkpoint/safetensors.h"
#include "app/config/load.h"
#include "app/train/evaluate.h"
#include "app/train/schedule.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

namespace fs = std::filesystem;
using app::SafetensorsFile;

void expect_finite(const fs::path& path) {
  for (const auto& [name, tensor] : app::read_safetensors(path).tensors) {
    EXPECT_TRUE(!tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>()) << path << ": " << name;
  }
}

class TrainFaults : public ProgramTest {};

// On a GPU the host sees what went wrong a few updates later, and says the same of it.
class TrainFaultsOn : public ProgramTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cuda" && !at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
    ProgramTest::SetUp();
  }
  std::vector<std::string> small_here(std::vector<std::string> more = {}) {
    more.push_back("train.device=" + GetParam());
    return small("run", more);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, TrainFaultsOn, testing::Values("cpu", "cuda"));

TEST_P(TrainFaultsOn, Case30_ANanLossStopsTheRunAndNamesStepAndMetric) {
  // The first epoch is sound; then a weight goes bad, as a cosmic ray or a bad disk would have it.
  auto arguments = small_here();
  arguments.insert(arguments.end(), {"--stop-after", "1"});
  ASSERT_EQ(run(arguments).code, 0);
  const fs::path last = folder_ / "run" / "checkpoints" / "last.safetensors";
  SafetensorsFile file = app::read_safetensors(last);
  const std::string best_before = read_file(folder_ / "run" / "checkpoints" / "best.safetensors");
  file.tensors.at("model.head.weight").view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
  app::write_safetensors(last, file);
  const Outcome stopped = run({"train", "--resume=run"});
  EXPECT_EQ(stopped.code, 1);
  EXPECT_EQ(stopped.out, "");
  for (const char* part : {"within epoch 2/3, after batch 1/6 (6 updates made)", "training loss is nan",
                           "the last checkpoint is run/checkpoints/last.safetensors"}) {
    EXPECT_NE(stopped.err.find(part), std::string::npos) << part << " in " << stopped.err;
  }
  EXPECT_EQ(read_file(folder_ / "run" / "checkpoints" / "best.safetensors"), best_before);
  expect_finite(folder_ / "run" / "checkpoints" / "best.safetensors");
}

TEST_P(TrainFaultsOn, AnomalyDetectionNamesTheLayer) {
  auto arguments = small_here();
  arguments.insert(arguments.end(), {"--stop-after", "1"});
  ASSERT_EQ(run(arguments).code, 0);
  const fs::path last = folder_ / "run" / "checkpoints" / "last.safetensors";
  const SafetensorsFile sound = app::read_safetensors(last);
  const auto planted = [&](const std::string& name, float value) {
    SafetensorsFile file = sound;
    for (auto& [key, tensor] : file.tensors) tensor = tensor.clone();
    file.tensors.at(name).view({-1})[0] = value;
    app::write_safetensors(last, file);
    const Outcome o = run({"train", "--resume=run", "train.detect_anomaly=true"});
    EXPECT_EQ(o.code, 1) << o.err;
    return o.err;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [weight, said] : std::map<std::string, std::string>{
           {"stem.conv0.weight", "the output of stem"},
           {"blocks.0.attention.row_qkv.weight", "the output of blocks.0.attention, row pass"},
           {"blocks.1.attention.col_norm.bias", "the output of blocks.1.attention, column pass"},
           {"blocks.1.mlp_down.bias", "the output of blocks.1, MLP"},
           {"head.bias", "the output of head"}}) {
    const std::string err = planted("model." + weight, nan);
    EXPECT_NE(err.find("is nan (first in " + said + ")"), std::string::npos) << weight << ": " << err;
  }
  // A run without a fault takes the same steps to the bit, and names nothing.
  app::write_safetensors(last, sound);
  const fs::path usual = folder_ / "usual";
  fs::copy(folder_ / "run", usual, fs::copy_options::recursive);
  const Outcome watched = run({"train", "--resume=run", "train.detect_anomaly=true"});
  EXPECT_EQ(watched.code, 0) << watched.err;
  EXPECT_EQ(watched.err.find("first in"), std::string::npos) << watched.err;
  ASSERT_EQ(run({"train", "--resume=usual"}).code, 0);
  const SafetensorsFile a = app::read_safetensors(last),
                        b = app::read_safetensors(usual / "checkpoints" / "last.safetensors");
  for (const auto& [name, tensor] : a.tensors) EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
}

TEST_F(TrainFaults, AnomalyDetectionNamesTheLayerOfASkippedUpdate) {
  const Outcome o = run(small("run", {"train.precision=float16", "train.loss_scale=16777216", "train.epochs=1",
                                      "train.detect_anomaly=true"}));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("a gradient is not finite (first in the gradient "), std::string::npos) << o.err;
}

TEST_F(TrainFaults, Case30_AnEvaluationThatIsNotFiniteReplacesNoCheckpoint) {
  auto arguments = small("run", {"optim.name=sgd"});
  arguments.insert(arguments.end(), {"--stop-after", "1"});
  ASSERT_EQ(run(arguments).code, 0);
  const fs::path last = folder_ / "run" / "checkpoints" / "last.safetensors";
  // Running statistics that training does not read and evaluation does.
  SafetensorsFile file = app::read_safetensors(last);
  for (auto& [name, tensor] : file.tensors) {
    if (name.find("running_mean") != std::string::npos) tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  app::write_safetensors(last, file);
  const std::string before = read_file(last);
  const Outcome o = run({"train", "--resume=run"});
  EXPECT_EQ(o.code, 1);
  for (const char* part : {"within epoch 2/3, after batch 6/6", "test loss is nan"}) {
    EXPECT_NE(o.err.find(part), std::string::npos) << part << " in " << o.err;
  }
  EXPECT_EQ(read_file(last), before);
  EXPECT_FALSE(fs::exists(folder_ / "run" / "checkpoints" / "epoch-0002.safetensors"));
}

TEST_P(TrainFaultsOn, Case30_ANanGradientInMidEpochStopsAtItsUpdate) {
  // A decay that makes weights a million times larger at each update: after some they are no numbers.
  const Outcome o =
      run(small_here({"optim.lr=1000", "optim.weight_decay=1000", "optim.warmup=0", "optim.schedule=constant"}));
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("within epoch 1/3, after batch "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("no checkpoint was written yet"), std::string::npos) << o.err;
  int batch = 0, made = 0;
  const std::size_t at = o.err.rfind("within epoch 1/3, after batch ");
  ASSERT_EQ(std::sscanf(o.err.c_str() + at, "within epoch 1/3, after batch %d/6 (%d updates made)", &batch, &made), 2)
      << o.err;
  EXPECT_GE(batch, 2) << "the first update begins with sound weights";
  EXPECT_EQ(made, batch - 1);
  EXPECT_TRUE(fs::is_empty(folder_ / "run" / "checkpoints"));
}

TEST_P(TrainFaultsOn, Case30_SkippedUpdatesLeaveWeightsAndStatisticsFinite) {
  // pixels of -3e38 overflow in the stem: every loss and every running statistic would be NaN
  const Outcome o = run(small_here(
      {"train.on_nonfinite=skip", "data.mean=1000", "data.std=3.2e-36", "train.epochs=2", "train.keep_last=2"}));
  EXPECT_EQ(o.code, 0) << o.err;
  for (int epoch = 1; epoch <= 2; ++epoch) {
    for (int batch = 1; batch <= 6; ++batch) {
      const std::string line = "within epoch " + std::to_string(epoch) + "/2, after batch " + std::to_string(batch) +
                               "/6: the loss is not finite; update skipped";
      EXPECT_NE(o.err.find(line), std::string::npos) << line << " in " << o.err;
    }
  }
  const fs::path last = folder_ / "run" / "checkpoints" / "last.safetensors";
  expect_finite(last);
  const auto progress = nlohmann::json::parse(app::read_safetensors(last).metadata.at("axial.progress"));
  EXPECT_EQ(progress.at("updates"), 0);
  EXPECT_EQ(progress.at("skipped"), 12);
  EXPECT_EQ(progress.at("best_top1"), -1) << "a metric that is not finite became the best";
  EXPECT_FALSE(fs::exists(folder_ / "run" / "checkpoints" / "best.safetensors"));
  // JSON has no NaN, and the checkpoint reads back all the same.
  EXPECT_TRUE(nlohmann::json::parse(o.out).at("loss").is_null()) << o.out;
  const Outcome info = run({"info", "run"});
  EXPECT_EQ(info.code, 0) << info.err;
  EXPECT_NE(info.out.find("after epoch 2/2"), std::string::npos) << info.out;
  EXPECT_EQ(run({"eval", "run"}).code, 1) << "there is no loss";
  // Both epochs made no update; a resume from the first tells them apart all the same.
  fs::copy_file(folder_ / "run" / "checkpoints" / "epoch-0001.safetensors", last,
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(run({"train", "--resume=run"}).code, 0);
  EXPECT_EQ(lines_of(read_file(folder_ / "run" / "metrics.csv")), 3u) << read_file(folder_ / "run" / "metrics.csv");
}

TEST_F(TrainFaults, MetricsThatCannotBeWrittenCostNoEpoch) {
  // metrics.csv becomes a folder while the run is on
  Program program(small("run", {"train.epochs=40"}), folder_);
  while (program.running() && program.err().find("epoch 2/40") == std::string::npos) ::usleep(1000);
  fs::remove(folder_ / "run" / "metrics.csv");
  fs::create_directory(folder_ / "run" / "metrics.csv");
  const Outcome o = program.wait();
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("warning: run/metrics.csv: cannot be written"), std::string::npos) << o.err;
  EXPECT_EQ(nlohmann::json::parse(o.out).at("epochs"), 40);
  expect_error(run({"train", "--resume=run", "train.epochs=41"}), 1, {"metrics.csv: is a folder"});
}

TEST_P(TrainFaultsOn, Case31_AnOverflowInFloat16AdvancesNothingAndTheScaleSurvivesAResume) {
  auto arguments = small_here({"train.precision=float16", "train.loss_scale=16777216"});
  arguments.insert(arguments.end(), {"--stop-after", "1"});
  const Outcome o = run(arguments);
  ASSERT_EQ(o.code, 0) << o.err;
  const fs::path last = folder_ / "run" / "checkpoints" / "last.safetensors";
  const auto before = nlohmann::json::parse(app::read_safetensors(last).metadata.at("axial.progress"));
  EXPECT_GT(before.at("skipped"), 0) << "the scale was meant to overflow";
  EXPECT_EQ(before.at("updates").get<int>() + before.at("skipped").get<int>(), 6);
  // halved once for each, and said each time
  EXPECT_EQ(before.at("loss_scale"), std::ldexp(16777216, -before.at("skipped").get<int>()));
  EXPECT_NE(o.err.find("a gradient is not finite; update skipped, loss scale now 8388608"), std::string::npos)
      << o.err;
  expect_finite(last);
  ASSERT_EQ(run({"train", "--resume=run", "--stop-after", "1.34"}).code, 0);
  const auto after = nlohmann::json::parse(app::read_safetensors(last).metadata.at("axial.progress"));
  EXPECT_LE(after.at("loss_scale"), before.at("loss_scale"));
}

TEST(BatchLoss, Case32_AMeanIsOverSamplesNotOverBatches) {
  data::Batch four, one;
  four.labels = at::zeros({4}, at::kLong);
  one.labels = at::ones({1}, at::kLong);
  const at::Tensor sums = app::batch_loss(at::zeros({4, 3}), four, 0).sums +
                          app::batch_loss(at::tensor({0.0f, -8.0f, 0.0f}, at::kFloat).view({1, 3}), one, 0).sums;
  const double alone = 8 + std::log(2 + std::exp(-8.0)), expected = (4 * std::log(3.0) + alone) / 5;
  EXPECT_NEAR(sums[0].item<double>() / sums[2].item<double>(), expected, 1e-6);
  EXPECT_DOUBLE_EQ(sums[1].item<double>(), 4);
}

TEST(BatchLoss, IsLibtorchsWithItsGradient) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  data::Batch batch;
  batch.labels = at::tensor({0, 1, 2, 3, 4}, at::kLong);
  batch.partner_labels = batch.labels.flip(0);  // the third is mixed with one of its own class
  batch.weights = at::tensor({1.0f, 0.75f, 0.5f, 0.25f, 0.0f}, at::kFloat);
  for (const double smoothing : {0.0, 0.1}) {
    for (const bool mixed : {true, false}) {
      const at::Tensor a = at::randn({5, 6}, generator).requires_grad_(true);
      data::Batch given;
      given.labels = batch.labels;
      if (mixed) given = batch;
      const app::BatchLoss loss = app::batch_loss(a, given, smoothing, at::full({}, 0.5f));
      const auto each = [&](const at::Tensor& labels) {
        return at::cross_entropy_loss(a, labels, {}, at::Reduction::None, -100, smoothing);
      };
      const at::Tensor expected =
          (mixed ? batch.weights * each(batch.labels) + (1 - batch.weights) * each(batch.partner_labels)
                 : each(batch.labels))
              .mean();
      EXPECT_NEAR(loss.sums[0].item<double>() / 5, expected.item<double>(), 1e-6);
      const at::Tensor heavier = mixed ? at::tensor({0, 1, 2, 1, 0}, at::kLong) : batch.labels;
      EXPECT_EQ(loss.sums[1].item<double>(), a.argmax(1).eq(heavier).sum().item<double>());
      (0.5 * expected).backward();
      EXPECT_TRUE(at::allclose(loss.d_logits, a.grad(), 1e-5, 1e-7));
      EXPECT_FALSE(app::batch_loss(a, given, smoothing).d_logits.defined());
    }
  }
}

TEST(Schedule, WarmsUpAndEndsWhereItShould) {
  app::OptimConfig c = app::load_config({}, {"optim.warmup=0.1", "optim.final_lr=0.01"}).optim;
  EXPECT_DOUBLE_EQ(app::learning_rate_factor(c, 0, 100), 0.1);
  EXPECT_DOUBLE_EQ(app::learning_rate_factor(c, 9, 100), 1);
  EXPECT_DOUBLE_EQ(app::learning_rate_factor(c, 55, 100), 0.01 + 0.99 * 0.5);
  EXPECT_NEAR(app::learning_rate_factor(c, 100, 100), 0.01, 1e-12);
  c.schedule = "linear";
  EXPECT_DOUBLE_EQ(app::learning_rate_factor(c, 55, 100), 0.01 + 0.99 * 0.5);
  c.schedule = "constant";
  EXPECT_DOUBLE_EQ(app::learning_rate_factor(c, 99, 100), 1);
  for (int u = 0; u < 1000; ++u) EXPECT_LE(app::learning_rate_factor(c, u, 1), 1);
}

TEST_F(TrainFaults, AnUnwritableFolderIsRefusedBeforeTheFirstStep) {
  std::ofstream(folder_ / "file") << "in the way";
  const Outcome o = run(small("file/run"));
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("file/run"), std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("epoch"), std::string::npos) << "trained first: " << o.err;
}

}  // namespace
}  // namespace axial::test
