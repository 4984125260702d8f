// `axial bench` as a user meets it, on the CPU; and its parts that need no device.

#include <filesystem>

#include <nlohmann/json.hpp>

#include "app/bench/cases.h"
#include "app/bench/floor.h"
#include "app/bench/statistics.h"
#include "app/config/load.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

using nlohmann::json;
namespace bench = app::bench;

class Bench : public ProgramTest {};

TEST_F(Bench, TimesBothBackendsOnTheCpuAndWritesJson) {
  const Outcome o = run({"bench", "--device", "cpu", "--shapes", "2,3,5,8,2", "--dtype", "float32,bfloat16",
                         "--repeats", "3", "--json", "bench.json"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  EXPECT_EQ(o.out.rfind("shape", 0), 0u) << o.out;
  for (const char* part : {"2,3,5,8,2", "fused", "reference", "fwd+bwd", "threads", "steady clock"}) {
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " in " << o.out;
  }

  const json document = json::parse(read_file(folder_ / "bench.json"));
  EXPECT_EQ(document.at("repeats"), 3);
  EXPECT_EQ(document.at("date").get<std::string>().size(), 20u);
  EXPECT_EQ(document.at("device").at("device"), "cpu");
  EXPECT_GE(document.at("device").at("threads"), 1);
  EXPECT_TRUE(document.at("rates").is_null());
  const json& results = document.at("results");
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0].at("backend"), "fused");
  EXPECT_EQ(results[1].at("backend"), "reference");
  EXPECT_EQ(results[2].at("dtype"), "bfloat16");
  for (const json& result : results) {
    EXPECT_EQ(result.at("sizes"), json({2, 3, 5, 8, 2}));
    EXPECT_NE(result.at("kernel"), "");
    EXPECT_GE(result.at("buffers"), 2);
    EXPECT_TRUE(result.at("peak_bytes").is_null());
    for (const char* direction : {"forward", "forward_backward"}) {
      const json& times = result.at(direction);
      const json& eager = times.at("eager");
      EXPECT_GT(eager.at("min_ms"), 0.0);
      EXPECT_LE(eager.at("min_ms"), eager.at("p10_ms"));
      EXPECT_LE(eager.at("p10_ms"), eager.at("median_ms"));
      EXPECT_LE(eager.at("median_ms"), eager.at("p90_ms"));
      EXPECT_EQ(times.at("fastest_ms"), eager.at("median_ms"));
      EXPECT_TRUE(times.at("replay").is_null());
      EXPECT_TRUE(times.at("amortised").is_null());
      EXPECT_FALSE(times.contains("floor_ms"));
    }
  }
}

TEST_F(Bench, OneBackendAlone) {
  const Outcome o = run({"bench", "--device=cpu", "--shapes=1,2,2,4,1", "--backend=reference", "--repeats=1"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out.find("fused"), std::string::npos) << o.out;
}

TEST_F(Bench, TimesTheStepOfAConfiguration) {
  // of a set that is not there, whose shape is known
  const std::vector<std::string> step = {"bench",
                                         "--step",
                                         "-c",
                                         config("bench.yaml"),
                                         "train.device=cpu",
                                         "train.threads=" + test_threads(),
                                         "data.dataset=cifar10",
                                         "data.batch_size=3",
                                         "train.accumulate=2",
                                         "model.dim=8",
                                         "model.heads=2",
                                         "model.depth=1",
                                         "model.stem_stride=4",
                                         "--repeats",
                                         "3",
                                         "--json",
                                         "step.json"};
  const Outcome o = run(step);
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  for (const char* part : {"fused", "reference", "images/s", "adamw in bfloat16", "2 batches of 3 images"})
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " in " << o.out;
  const json document = json::parse(read_file(folder_ / "step.json"));
  const json& results = document.at("results");
  ASSERT_EQ(results.size(), 2u) << "a CPU has no graphs";
  EXPECT_EQ(results[1].at("backend"), "reference");
  for (const json& result : results) {
    EXPECT_EQ(result.at("graph"), false);
    EXPECT_EQ(result.at("images"), 6);
    const double ms = result.at("median_ms");
    EXPECT_GT(ms, 0);
    EXPECT_NEAR(result.at("images_per_second").get<double>() * ms, 6000, 1);
    double sum = 0;
    for (const char* part : {"data_ms", "forward_ms", "backward_ms", "update_ms"}) {
      EXPECT_GT(result.at("parts").at(part), 0.0) << part;
      sum += result.at("parts").at(part).get<double>();
    }
    EXPECT_LT(sum, 20 * ms);
    EXPECT_GT(sum, ms / 20) << "the parts make up the step";
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name == "step.json" || name.rfind("out-", 0) == 0 || name.rfind("err-", 0) == 0) << name;
  }
  // a step whose numbers are none is no time
  std::vector<std::string> broken = step;
  broken.insert(broken.end(), {"optim.lr=1000", "optim.weight_decay=1000", "--backend", "fused"});
  const Outcome bad = run(broken);
  EXPECT_EQ(bad.code, 0) << bad.err;
  EXPECT_NE(bad.out.find("not finite"), std::string::npos) << bad.out;
}

TEST_F(Bench, WrongCommandLinesAreOneLineAndExit2) {
  const auto refused = [&](std::vector<std::string> arguments, const std::vector<std::string>& parts) {
    arguments.insert(arguments.begin(), {"bench", "--device", "cpu"});
    expect_error(run(arguments), 2, parts);
  };
  refused({"--shapes", "trian64"}, {"--shapes", "trian64", "train64", "B,H,W,D,heads"});
  refused({"--shapes", "4,32,32,64"}, {"--shapes", "4,32,32,64"});
  refused({"--shapes", "4,32,0,64,4"}, {"--shapes", "4,32,0"});
  refused({"--shapes", "4,32,-1,64,4"}, {"--shapes", "4,32,-1"});
  refused({"--shapes", "4,32,32,64,3"}, {"--shapes", "heads (3)"});
  refused({"--shapes", "4,32,32,514,2"}, {"--shapes", "256"});
  refused({"--shapes", "9000000000,9000000000,9000000000,64,4"}, {"--shapes", "2^40"});
  refused({"--shapes", ""}, {"--shapes"});
  refused({"--dtype", "int8"}, {"--dtype", "int8", "bfloat16"});
  refused({"--dtype", "tf32"}, {"--dtype", "tf32", "GPU"});
  refused({"--backend", "cudnn"}, {"--backend", "cudnn", "reference"});
  refused({"--repeats", "0"}, {"--repeats"});
  refused({"--repeats", "many"}, {"--repeats"});
  expect_error(run({"bench", "--device", "tpu"}), 2, {"tpu", "cuda:N"});
  refused({"-c", config("bench.yaml")}, {"-c", "--step"});
  refused({"optim.lr=1"}, {"optim.lr=1", "--step"});
  refused({"--step", "--data", "generated"}, {"--step", "--data"});
  refused({"--step", "--shapes", "seed"}, {"--step", "--shapes"});
  refused({"--step", "--size", "3,3"}, {"--size", "--data"});
  refused({"--step", "optim.lr=fast"}, {"optim.lr", "fast"});
}

TEST_F(Bench, WhatCannotBeWrittenOrRunIsOneLineAndExit1) {
  expect_error(run({"bench", "--device", "cpu", "--json", "no/such/folder/bench.json"}), 1, {"no/such/folder"});
  expect_error(run({"bench", "--device", "cuda"}, {{"CUDA_VISIBLE_DEVICES", ""}}), 1,
               {"--device cuda", "--device cpu"});
}

TEST(BenchCases, NamesAndNumbersMixInAnyArgument) {
  const auto shapes = bench::parse_shapes({"seed,4,8,16,32,2", "mid"});
  ASSERT_EQ(shapes.size(), 3u);
  EXPECT_EQ(shapes[0].batch, 4);
  EXPECT_EQ(shapes[1].name, "4,8,16,32,2");
  EXPECT_EQ(shapes[1].width, 16);
  EXPECT_EQ(shapes[2].dim, 128);
  EXPECT_EQ(bench::parse_shapes(bench::default_shapes(true)).size(), 7u);
  EXPECT_EQ(bench::parse_shapes(bench::default_shapes(false)).size(), 2u);
  EXPECT_EQ(bench::parse_types({"bfloat16,tf32", "float32"}, /*cuda=*/true).size(), 3u);
}

// A token of one pass at L = 32, D = 64, 4 heads: 8 D^2 + 4 L D = 40960 operations, L * heads = 128 exponentials.
TEST(BenchFloor, IsTheLongestOfItsThreeTimes) {
  const bench::Shape shape = bench::parse_shapes({"10,32,32,64,4"})[0];
  const bench::Type type = bench::parse_types({"bfloat16"}, true)[0];
  const double tokens = 10 * 32 * 32;
  const auto forward = bench::Direction::kForward, both = bench::Direction::kForwardBackward;
  bench::Rates rates;
  rates.copy_bytes = 1e9;
  rates.matrix["bfloat16"] = 1e18;
  rates.exponentials = 1e18;
  EXPECT_EQ(bench::floor_of(shape, type, rates, forward).bound, "bytes");
  EXPECT_DOUBLE_EQ(bench::floor_of(shape, type, rates, forward).ms, 2 * 1e3 * tokens * 2 * 64 * 2 / 1e9);
  EXPECT_DOUBLE_EQ(bench::floor_of(shape, type, rates, both).ms, 2 * 1e3 * tokens * 5 * 64 * 2 / 1e9);
  rates.copy_bytes = 1e18;
  rates.matrix["bfloat16"] = 1e9;
  EXPECT_EQ(bench::floor_of(shape, type, rates, forward).bound, "matrix");
  EXPECT_DOUBLE_EQ(bench::floor_of(shape, type, rates, forward).ms, 2 * 1e3 * tokens * 40960 / 1e9);
  EXPECT_DOUBLE_EQ(bench::floor_of(shape, type, rates, both).ms, 2 * 1e3 * tokens * 4 * 40960 / 1e9);
  rates.matrix["bfloat16"] = 1e18;
  rates.exponentials = 1e9;
  EXPECT_EQ(bench::floor_of(shape, type, rates, both).bound, "exp");
  EXPECT_DOUBLE_EQ(bench::floor_of(shape, type, rates, both).ms, 2 * 1e3 * tokens * 2 * 32 * 4 / 1e9);
}

TEST(BenchStatistics, QuantilesLieBetweenNeighbours) {
  const bench::Timing t = bench::summarise({5, 1, 3, 2, 4});
  EXPECT_DOUBLE_EQ(t.median, 3);
  EXPECT_DOUBLE_EQ(t.p10, 1.4);
  EXPECT_DOUBLE_EQ(t.p90, 4.6);
  EXPECT_DOUBLE_EQ(t.least, 1);
  EXPECT_NEAR(t.spread_percent(), 100 * 1.6 / 3, 1e-9);
  EXPECT_DOUBLE_EQ(bench::summarise({7}).p90, 7);
}

}  // namespace
}  // namespace axial::test
