// What ends a run, what it keeps, what it starts from and leaves alone, and what a dry run tells.

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "app/checkpoint/safetensors.h"
#include "app/train/optimizer.h"
#include "app/train/state.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Running : public ProgramTest {
 protected:
  app::SafetensorsFile last(const std::string& run) {
    return app::read_safetensors(folder_ / run / "checkpoints" / "last.safetensors");
  }
  // A column of metrics.csv.
  std::vector<double> column(const std::string& run, const std::string& name) {
    std::istringstream text(read_file(folder_ / run / "metrics.csv"));
    std::vector<double> values;
    std::size_t wanted = 0;
    for (std::string line; std::getline(text, line);) {
      std::vector<std::string> fields;
      std::istringstream row(line);
      for (std::string field; std::getline(row, field, ',');) fields.push_back(field);
      if (wanted == 0) {
        wanted = static_cast<std::size_t>(std::find(fields.begin(), fields.end(), name) - fields.begin());
      } else {
        values.push_back(std::stod(fields.at(wanted)));
      }
    }
    return values;
  }
  std::vector<std::string> checkpoints(const std::string& run) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / run / "checkpoints"))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(Running, PatienceEndsARunThatGetsNoBetter) {
  // Nothing moves, batch statistics but for their noise: the average of the weights is evaluated at its start.
  const std::vector<std::string> more = {"optim.lr=0", "train.epochs=12", "train.patience=3", "train.ema_decay=0",
                                         "model.stem_norm=none"};
  Outcome o = run(small("run", more));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json::parse(o.out).at("epochs"), 4);
  EXPECT_EQ(json::parse(o.out).at("best_epoch"), 1);
  EXPECT_NE(o.err.find("3 evaluations brought no better top1 than epoch 1's"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("axial eval"), std::string::npos) << "it is finished: " << o.err;
  o = run({"train", "--resume=run"});
  EXPECT_EQ(o.code, 0);
  EXPECT_NE(o.err.find("nothing to do"), std::string::npos) << o.err;
  // The counter is part of the checkpoint; more patience goes on from it.
  o = run({"train", "--resume=run", "train.patience=5"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json::parse(o.out).at("epochs"), 6);
}

TEST_F(Running, TheBestIsByTheMetricAndTheBestFewAreKept) {
  for (const std::string metric : {"top1", "loss"}) {
    const Outcome o =
        run(small(metric, {"train.epochs=7", "train.eval_metric=" + metric, "train.keep_best=2", "optim.lr=0.02"}));
    ASSERT_EQ(o.code, 0) << o.err;
    std::vector<double> values = column(metric, metric == "loss" ? "val_loss" : "val_top1");
    if (metric == "loss") std::for_each(values.begin(), values.end(), [](double& v) { v = -v; });
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < values.size(); ++i) order.push_back(i + 1);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return values[a - 1] > values[b - 1]; });
    EXPECT_EQ(json::parse(o.out).at("best_epoch"), order[0]) << metric;
    std::vector<std::string> expected = {"best.safetensors", "last.safetensors"};
    for (const std::size_t epoch : {order[0], order[1], std::size_t{7}}) {
      expected.push_back("epoch-000" + std::to_string(epoch) + ".safetensors");
    }
    std::sort(expected.begin(), expected.end());
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    EXPECT_EQ(checkpoints(metric), expected) << metric;
  }
}

// Times and rates of the epochs are parts of the run's, whether it was stopped in the middle of one or not.
TEST_F(Running, EpochsTakeAllOfTheTime) {
  ASSERT_EQ(run(small("run", {"--stop-after", "1.5"})).code, 0);
  const Outcome o = run({"train", "--resume=run"});
  ASSERT_EQ(o.code, 0) << o.err;
  const std::vector<double> seconds = column("run", "seconds"), rates = column("run", "images_per_second");
  ASSERT_EQ(seconds.size(), 3u);
  double images = 0;
  for (std::size_t i = 0; i < 3; ++i) images += rates[i] * (seconds[i] - (i > 0 ? seconds[i - 1] : 0));
  EXPECT_NEAR(images, 3 * 192, 1e-3) << "six batches of 32 an epoch";
}

TEST(NoteEvaluation, WhatIsNotFiniteIsNeverTheBest) {
  app::Progress p;
  app::TrainConfig config;
  config.keep_best = 2;
  config.patience = 2;
  const double nan = std::nan("");
  for (const char* metric : {"top1", "loss"}) {
    p = {};
    config.eval_metric = metric;
    EXPECT_FALSE(app::note_evaluation(p, config, 1, 0.9, nan));
    EXPECT_EQ(p.best_epoch, 0);
    EXPECT_TRUE(app::note_evaluation(p, config, 2, 0.5, 1.0));
    EXPECT_FALSE(app::note_evaluation(p, config, 3, 0.5, 1.0)) << "as good is not better";
    EXPECT_FALSE(app::out_of_patience(p, config));
    EXPECT_FALSE(app::note_evaluation(p, config, 4, nan, nan));
    EXPECT_TRUE(app::out_of_patience(p, config));
    EXPECT_TRUE(app::note_evaluation(p, config, 5, 0.6, 0.9));
    EXPECT_FALSE(app::out_of_patience(p, config));
    ASSERT_EQ(p.top.size(), 2u);
    EXPECT_EQ(p.top[0].first, 5);
    EXPECT_EQ(p.top[1].first, 2) << "the earlier of equals";
  }
}

// As in a small set, where many epochs have the same accuracy.
TEST(NoteEvaluation, OfEqualAccuraciesTheLowerLossIsBetter) {
  app::Progress p;
  app::TrainConfig config;
  EXPECT_TRUE(app::note_evaluation(p, config, 1, 0.6, 1.4));
  EXPECT_TRUE(app::note_evaluation(p, config, 2, 0.6, 1.1));
  EXPECT_FALSE(app::note_evaluation(p, config, 3, 0.6, 1.2));
  EXPECT_FALSE(app::note_evaluation(p, config, 4, 0.5, 0.9));
  EXPECT_EQ(p.best_epoch, 2);
  config.keep_best = 2;
  p = {};
  for (const auto& [epoch, loss] : std::vector<std::pair<std::int64_t, double>>{{1, 1.4}, {2, 1.1}, {3, 1.2}})
    app::note_evaluation(p, config, epoch, 0.6, loss);
  ASSERT_EQ(p.top.size(), 2u);
  EXPECT_EQ(p.top[0].first, 2) << "the best one is among those that train.keep_best keeps";
  EXPECT_EQ(p.top[1].first, 1);
}

TEST_F(Running, ATimeLimitEndsItAsStopAfterDoes) {
  std::vector<std::string> arguments = small("run", {"train.epochs=100000", "train.log_every=1000000"});
  arguments.insert(arguments.end(), {"--time-limit", "0.05"});
  Outcome o = run(arguments);
  ASSERT_EQ(o.code, 0) << o.err;
  // The limit may pass between two epochs or within one ("stopped after epoch", "stopped within epoch").
  EXPECT_NE(o.err.find("] stopped "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("--resume=run"), std::string::npos) << o.err;
  const auto epochs = json::parse(o.out).at("epochs").get<std::int64_t>();
  EXPECT_LT(epochs, 100000);
  o = run({"train", "--resume=run", "train.epochs=" + std::to_string(epochs + 1)});
  EXPECT_EQ(o.code, 0) << o.err;
  arguments.back() = "0";
  expect_error(run(arguments), 2, {"--time-limit", "minutes above 0"});
}

TEST_F(Running, AnotherRunsWeightsAreTakenByName) {
  ASSERT_EQ(run(small("first", {"train.epochs=1"})).code, 0);
  // Nothing moves: what a run ends with is what it started from.
  const std::vector<std::string> still = {"train.epochs=1", "optim.lr=0", "train.ema_decay=0", "train.seed=5",
                                          "train.init_from=first"};
  const auto started = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), still.begin(), still.end());
    return run(small(name, more));
  };
  Outcome o = started("same", {});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("/first/checkpoints/best.safetensors: 51 tensors loaded (averages)"), std::string::npos)
      << o.err;
  EXPECT_EQ(o.err.find("anew"), std::string::npos) << o.err;
  const app::SafetensorsFile from = app::read_safetensors(folder_ / "first" / "checkpoints" / "best.safetensors");
  const auto expect_taken = [&](const app::SafetensorsFile& file, const std::string& without) {
    int count = 0;
    for (const auto& [name, tensor] : file.tensors) {
      if (name.rfind("model.", 0) != 0 || name.find("running_") != std::string::npos ||
          name.find("num_batches") != std::string::npos)
        continue;
      const at::Tensor& other = from.tensors.at("ema." + name.substr(6));
      if (tensor.sizes() != other.sizes()) continue;
      if (!without.empty() && name.find(without) != std::string::npos) {
        EXPECT_FALSE(at::equal(tensor, other) && tensor.abs().max().item<double>() > 0) << name;
        continue;
      }
      EXPECT_TRUE(at::equal(tensor, other)) << name;
      ++count;
    }
    EXPECT_GT(count, 20);
  };
  expect_taken(last("same"), "");

  o = started("classes", {"data.synthetic_classes=7"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("the head starts anew (7 classes, there 10)"), std::string::npos) << o.err;
  expect_taken(last("classes"), "head.");

  o = started("larger", {"data.synthetic_height=32", "data.synthetic_width=24"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("interpolated (row_pos, col_pos, blocks.0.attention.row_bias"), std::string::npos) << o.err;
  expect_taken(last("larger"), "");

  o = started("deeper", {"model.depth=[1,2]"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("not there, start anew (blocks.2."), std::string::npos) << o.err;

  expect_error(started("wider", {"model.dim=[32,32]"}), 1,
               {"train.init_from", "row_pos is [10, 1, 16] there and [10, 1, 32] here"});
  EXPECT_FALSE(fs::exists(folder_ / "wider"));
  // What fits by its shapes alone.
  expect_error(started("other", {"model.first_axis=height"}), 1,
               {"model.first_axis is width, not height", "init_from"});
  expect_error(started("other", {"model.stem_activation=gelu"}), 1, {"model.stem_activation is relu, not gelu"});
  expect_error(started("other", {"model.depth=[2,1]"}), 1,
               {"model.depth is [1, 1], not [2, 1]", "only the last one's may change"});
  EXPECT_FALSE(fs::exists(folder_ / "other"));
  expect_error(run(small("none", {"train.init_from=nowhere"})), 1,
               {"error: train.init_from: ", "/nowhere: no such file or folder"});
  // A resumed run goes on with its own weights, wherever the first ones have gone.
  ASSERT_EQ(run(small("parts", {"train.init_from=first", "--stop-after", "1"})).code, 0);
  fs::rename(folder_ / "first", folder_ / "gone");
  o = run({"train", "--resume=parts"});
  EXPECT_EQ(o.code, 0) << o.err;
}

TEST_F(Running, TablesAreInterpolatedWhereTheyMeanTheSame) {
  ASSERT_EQ(run(small("first", {"train.epochs=1", "train.ema_decay=0", "model.position_sensitive=true"})).code, 0);
  app::SafetensorsFile file = app::read_safetensors(folder_ / "first" / "checkpoints" / "best.safetensors");
  // 10 x 8 tokens. A ramp over the picture's height, and a bias that is the relative offset in picture heights.
  at::Tensor& rows = file.tensors.at("model.row_pos");
  rows = ((at::arange(10, at::kFloat) + 0.5) / 10).view({10, 1, 1}).expand({10, 1, 16}).contiguous();
  at::Tensor& bias = file.tensors.at("model.blocks.0.attention.col_bias");
  bias = (at::arange(-9, 10, at::kFloat) / 9).view({1, 19}).expand({2, 19}).contiguous();
  at::Tensor& keys = file.tensors.at("model.blocks.0.attention.col_relative_k");
  keys = (at::arange(-9, 10, at::kFloat) / 9).view({19, 1}).expand(keys.sizes()).contiguous();
  app::write_safetensors(folder_ / "ramp.safetensors", file);
  ASSERT_EQ(run(small("larger", {"train.epochs=1", "optim.lr=0", "train.ema_decay=0", "model.position_sensitive=true",
                                 "train.init_from=ramp.safetensors", "data.synthetic_height=40"}))
                .code,
            0);
  const app::SafetensorsFile larger = last("larger");  // 20 x 8 tokens
  const at::Tensor ramp = larger.tensors.at("model.row_pos").select(2, 0).flatten();
  const at::Tensor wanted =
      ((at::arange(20, at::kFloat) + 0.5) / 20).clamp(0.05, 0.95);  // flat beyond the outer tokens
  EXPECT_TRUE(at::allclose(ramp, wanted, 0, 1e-6)) << ramp;
  const at::Tensor offsets = larger.tensors.at("model.blocks.0.attention.col_bias")[1];
  EXPECT_TRUE(at::allclose(offsets, at::arange(-19, 20, at::kFloat) / 19, 0, 1e-6)) << offsets;
  EXPECT_NEAR(offsets[19].item<float>(), 0, 1e-7) << "no offset stays no offset";
  const at::Tensor by_key = larger.tensors.at("model.blocks.0.attention.col_relative_k");
  EXPECT_EQ(by_key.sizes(), at::IntArrayRef({39, 8}));
  EXPECT_TRUE(at::allclose(by_key.select(1, 3), at::arange(-19, 20, at::kFloat) / 19, 0, 1e-6)) << by_key;
  rows = at::full({10, 1, 16}, NAN);
  app::write_safetensors(folder_ / "nan.safetensors", file);
  for (const auto& arguments : {small("no", {"model.position_sensitive=true", "train.init_from=nan.safetensors"}),
                                {"eval", "nan.safetensors"},
                                {"predict", "nan.safetensors", "0"}}) {
    expect_error(run(arguments), 1, {"nan.safetensors: ", "row_pos holds a value that is not finite"});
  }
}

TEST_F(Running, WhatIsFrozenStays) {
  ASSERT_EQ(run(small("first", {"train.epochs=1", "train.ema_decay=0"})).code, 0);
  const Outcome o = run(small("second", {"train.epochs=1", "train.ema_decay=0", "train.init_from=first",
                                         "train.freeze=stem, blocks.0.attention,*_pos,norm.weight"}));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("train.freeze: "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find(" stay as they are"), std::string::npos) << o.err;
  const app::SafetensorsFile from = last("first"), file = last("second");
  const auto frozen = [](const std::string& name) {
    return name.rfind("stem.", 0) == 0 || name.rfind("blocks.0.attention.", 0) == 0 || name == "row_pos" ||
           name == "col_pos" || name == "norm.weight";
  };
  int kept = 0, moved = 0;
  for (const auto& [key, tensor] : file.tensors) {
    if (key.rfind("optimizer.", 0) == 0) {
      const std::string name = key.substr(key.find('.', key.find('.', 10) + 1) + 1);
      EXPECT_FALSE(frozen(name)) << key << ": no state for what is not trained";
    }
    if (key.rfind("model.", 0) != 0) continue;
    const bool same = at::equal(tensor, from.tensors.at(key));
    EXPECT_EQ(same, frozen(key.substr(6))) << key << ", running statistics too";
    (same ? kept : moved) += 1;
  }
  EXPECT_GT(kept, 15);
  EXPECT_GT(moved, 15);
  expect_error(run(small("bad", {"train.freeze=steam"})), 2, {"train.freeze: steam", "stem"});
  expect_error(run(small("bad", {"train.freeze=*"})), 2, {"train.freeze", "nothing to train"});
  EXPECT_FALSE(fs::exists(folder_ / "bad"));
}

TEST(LayerScale, CountsLayersAsTimmDoes) {
  const std::vector<std::int64_t> depth = {2, 3};
  const std::map<std::string, int> powers = {{"head.weight", 0},
                                             {"norm.bias", 1},
                                             {"blocks.4.mlp_up.weight", 1},
                                             {"blocks.2.mlp_up.bias", 3},
                                             {"blocks.2.mlp_scale", 3},
                                             {"blocks.1.attention.col_scale", 4},
                                             {"merges.0.linear.weight", 3},
                                             {"blocks.1.mlp_up.weight", 4},
                                             {"blocks.0.attention.row_bias", 5},
                                             {"stem.conv0.weight", 6},
                                             {"row_pos", 6}};
  for (const auto& [name, power] : powers)
    EXPECT_DOUBLE_EQ(app::layer_scale(name, depth, 0.5), std::pow(0.5, power)) << name;
}

TEST(LayerScale, ScalesEachRulesSteps) {
  for (const char* rule : {"sgd", "adamw", "muon"}) {
    std::map<std::string, double> step[2];
    for (const bool decayed : {false, true}) {
      app::OptimConfig config = {};
      config.name = rule;
      config.lr = 0.1;
      config.muon_lr = 0.1;
      config.betas = {0.9, 0.999};
      config.eps = 1e-8;
      config.layer_decay = decayed ? 0.5 : 1;
      app::NamedTensors parameters;
      for (const char* name :
           {"stem.conv0.weight", "blocks.0.mlp_up.weight", "blocks.1.mlp_up.weight", "head.bias"}) {
        at::Tensor p = at::zeros(std::string(name) == "head.bias" ? std::vector<std::int64_t>{4}
                                                                  : std::vector<std::int64_t>{4, 4});
        p.mutable_grad() = p.dim() == 2 ? at::eye(4) : at::ones({4});
        parameters.emplace_back(name, p);
      }
      app::Optimizer optimizer(config, parameters, {1, 1});
      optimizer.step({at::ones({}, at::kDouble), {}, {}});
      for (const auto& [name, p] : parameters) step[decayed][name] = p.norm().item<double>();
    }
    EXPECT_GT(step[0]["head.bias"], 0);
    EXPECT_NEAR(step[1]["head.bias"] / step[0]["head.bias"], 1, 1e-5) << rule;
    EXPECT_NEAR(step[1]["blocks.1.mlp_up.weight"] / step[0]["blocks.1.mlp_up.weight"], 0.5, 1e-5) << rule;
    EXPECT_NEAR(step[1]["blocks.0.mlp_up.weight"] / step[0]["blocks.0.mlp_up.weight"], 0.25, 1e-5) << rule;
    EXPECT_NEAR(step[1]["stem.conv0.weight"] / step[0]["stem.conv0.weight"], 0.125, 1e-5) << rule;
  }
}

TEST_F(Running, ADryRunTellsPartsOperationsAndMemory) {
  const auto dry = [&](std::vector<std::string> more) {
    more.push_back("--dry-run");
    Outcome o = run(small("run", more));
    EXPECT_EQ(o.code, 0) << o.err;
    return o;
  };
  const Outcome o = dry({"train.freeze=stem"});
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  // By hand: 2 * 9 * 16 * 80 of the stem; qkv, scores and values, output and MLP of 80 tokens of 16 channels in lines
  // of 8 and 10; the merge and the same of 20 tokens of 32; the head.
  std::map<std::string, std::vector<std::string>> rows;
  std::istringstream text(o.out);
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::vector<std::string> fields;
    for (std::string word; words >> word;) fields.push_back(word);
    if (fields.empty()) continue;
    const bool stage = fields[0] == "stage";
    rows[stage ? fields[0] + fields[1] : fields[0]] = {fields.begin() + (stage ? 2 : 1), fields.end()};
  }
  EXPECT_EQ(rows["stem"], (std::vector<std::string>{"10x8", "16", "176", "0", "23.0", "k"})) << o.out;
  EXPECT_EQ(rows["position"], (std::vector<std::string>{"10x8", "16", "288", "288", "0"})) << o.out;
  const std::string trained = rows["all"].at(1);
  EXPECT_NE(o.err.find("train.freeze: " + trained + " parameters are trained, 176 stay as they are"),
            std::string::npos)
      << o.err;
  EXPECT_EQ(dry({"model.position=false"}).out.find("position"), std::string::npos);
  EXPECT_EQ(rows["stage1"].at(0), "10x8");
  EXPECT_EQ(rows["stage1"].at(4), "584");
  EXPECT_EQ(rows["stage2"].at(0), "5x4");
  EXPECT_EQ(rows["stage2"].at(4), "596");
  EXPECT_EQ(rows["head"].at(4), "640");
  EXPECT_EQ(rows["all"].at(2), "1204") << o.out;
  ASSERT_EQ(run(small("real", {"train.epochs=1", "--stop-after", "0.1"})).code, 0);
  std::int64_t parameters = 0, buffers = 0;
  for (const auto& [name, tensor] : last("real").tensors) {
    if (name.rfind("model.", 0) != 0) continue;
    const bool buffer = name.find("running_") != std::string::npos || name.find("num_batches") != std::string::npos;
    (buffer ? buffers : parameters) += tensor.numel();
  }
  EXPECT_EQ(rows["all"].at(0), std::to_string(parameters));

  const auto kept = [&](const Outcome& of) {
    const std::size_t at = of.out.find("keeps ");
    double value = 0;
    char unit[8] = "";
    EXPECT_EQ(std::sscanf(of.out.c_str() + at, "keeps %lf %7s", &value, unit), 2) << of.out;
    return value * (std::string(unit) == "MiB" ? 1024 : 1);
  };
  const double once = kept(o), twice = kept(dry({"train.freeze=stem", "data.batch_size=64"}));
  EXPECT_GT(once, 100);
  EXPECT_NEAR(twice / once, 2, 0.1);
}

}  // namespace
}  // namespace axial::test
