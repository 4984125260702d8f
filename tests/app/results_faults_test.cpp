// What the commands that look at results say of a model, a file or an input that is not as it should be.
#include <cstdlib>
#include <fstream>
#include <limits>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "app/checkpoint/safetensors.h"
#include "app/train/state.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ResultFaults : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    const Outcome o = run(small("run", {"train.epochs=1", "train.ema_decay=0"}));
    ASSERT_EQ(o.code, 0) << o.err;
  }
  // With what a shell does to the program's standard streams.
  Outcome shell(const std::string& arguments) {
    const std::string command = "cd '" + folder_.string() + "' && '" AXIAL_PROGRAM "' " + arguments + " 2> shell-err";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), "", read_file(folder_ / "shell-err")};
  }
  app::SafetensorsFile best() { return app::read_safetensors(folder_ / "run" / "checkpoints" / "best.safetensors"); }
};

// Finite weights whose products are not: no loss, no class and no map are told.
TEST_F(ResultFaults, AnAnswerThatIsNotFiniteIsNone) {
  app::SafetensorsFile file = best();
  for (auto& [name, tensor] : file.tensors) tensor = tensor.clone();
  file.tensors.at("model.norm.bias").fill_(3e38);
  file.tensors.at("model.head.weight").fill_(3e38);
  app::write_safetensors(folder_ / "large.safetensors", file);
  const std::string what =
      "the model's answer is not finite: its weights are numbers that its arithmetic overflows with";
  Outcome o = run({"eval", "large.safetensors", "data.eval_batch_size=16", "--json", "scores.json"});
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_NE(o.err.find("large.safetensors: the loss is not finite, from test image 0 on (batch 1 of 4): " + what),
            std::string::npos)
      << o.err;
  EXPECT_FALSE(fs::exists(folder_ / "scores.json"));
  expect_error(run({"predict", "large.safetensors", "5"}), 1, {"5: " + what});
  expect_error(run({"explain", "large.safetensors", "5", "-o", "map.png"}), 1, {"5: " + what});
  EXPECT_FALSE(fs::exists(folder_ / "map.png"));
  fs::copy_file(folder_ / "large.safetensors", folder_ / "run" / "checkpoints" / "best.safetensors",
                fs::copy_options::overwrite_existing);
  o = run({"report", "run", "-o", "page.html"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("run is not evaluated: run/checkpoints/best.safetensors: the loss is not finite"),
            std::string::npos)
      << o.err;
}

TEST_F(ResultFaults, AListThatIsEmptyIsSaid) {
  std::ofstream(folder_ / "blank") << "\n\r\n\n";
  for (const char* from : {"< /dev/null", "<&-", "< blank"}) {
    const Outcome o = shell(std::string("predict run - ") + from + " > answers");
    expect_error(o, 1, {"standard input: is empty, expected paths of pictures, one a line"});
    EXPECT_EQ(read_file(folder_ / "answers"), "") << from;
  }
  EXPECT_EQ(shell("predict run 0 - < blank > answers").code, 1) << "the other input is answered";
  EXPECT_EQ(lines_of(read_file(folder_ / "answers")), 1u);
}

TEST_F(ResultFaults, AnOutputIsCalledWhatItIs) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> writers = {
      {{"explain", "run", "0", "-o"}, ".png"},
      {{"report", "run", "-o"}, ".html"},
      {{"export", "run", "-o"}, ".safetensors"}};
  for (const auto& [command, ending] : writers) {
    std::vector<std::string> arguments = command;
    for (const char* name : {"x.jpg", "x.pt", "x.html.gz"}) {
      arguments.push_back(name);
      expect_error(run(arguments), 2, {std::string(name) + ": expected a name that ends in " + ending});
      EXPECT_FALSE(fs::exists(folder_ / name));
      arguments.pop_back();
    }
    arguments.push_back("x" + (ending == ".png" ? std::string(".PNG") : ending));
    EXPECT_EQ(run(arguments).code, 0);
    arguments.back() = "v1.d/plain";
    fs::create_directories(folder_ / "v1.d");
    EXPECT_EQ(run(arguments).code, 0) << "without an ending nothing is promised";
  }
}

TEST_F(ResultFaults, BytesAreNamed) {
  const Outcome o = run({"export", "run", "-o", "w.safetensors"});
  ASSERT_EQ(o.code, 0) << o.err;
  const json line = json::parse(o.out);
  const auto size = fs::file_size(folder_ / "w.safetensors");
  EXPECT_EQ(line.at("file_bytes"), size);
  EXPECT_LT(line.at("tensor_bytes"), size);
  const std::string said = std::to_string(line.at("tensors").get<int>()) + " tensors of " +
                           std::to_string(line.at("tensor_bytes").get<std::int64_t>()) + " bytes, in a file of " +
                           std::to_string(size) + "\n";
  EXPECT_NE(run({"info", "w.safetensors"}).out.find(said), std::string::npos) << said;
}

// One line with file, key and field, whatever stands there; nothing is counted on from it.
TEST_F(ResultFaults, MetadataIsHeldToItsRanges) {
  const app::SafetensorsFile good = best();
  const auto refused = [&](const std::string& key, const std::string& value, const std::string& said) {
    app::SafetensorsFile bad = good;
    bad.metadata[key] = value;
    std::string error;
    try {
      app::checkpoint_info(bad, "bad.safetensors");
    } catch (const app::CheckpointError& e) {
      error = e.what();
    }
    EXPECT_EQ(error.rfind("bad.safetensors: the metadata is damaged: " + key + ": " + said, 0), 0u)
        << key << " " << value << ": " << error;
    EXPECT_EQ(error.find("json"), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  };
  refused("axial.threads", "2000000000", "expected an integer in 0..4096, found 2000000000");
  refused("axial.threads", "-5", "expected an integer in 0..4096, found -5");
  refused("axial.threads", "many", "expected JSON, found many");
  refused("axial.classes", "[1", "expected JSON, found [1");
  refused("axial.classes", "[1]", "expected a list of texts, found 1");
  refused("axial.ema_updates", "1e400", "expected JSON, found 1e400");
  const auto changed = [&](const std::string& key, const std::string& field, const json& value,
                           const std::string& said) {
    json all = json::parse(good.metadata.at(key));
    all[field] = value;
    refused(key, all.dump(), field + ": " + said);
  };
  changed("axial.image", "std", {0.0}, "expected a number in 1.");
  changed("axial.image", "std", {1e-45}, "expected a number in 1.");
  changed("axial.image", "std", {1.0, 1.0}, "expected a list of 1 numbers in ");
  changed("axial.image", "height", 40000000, "expected an integer in 1..65536, found 40000000");
  changed("axial.image", "train_images", -1, "expected an integer in 0..");
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  const std::vector<std::pair<std::string, std::vector<json>>> progress = {
      {"epoch", {-1, 1000001, 1.5, "1", least, 1e300}},
      {"batch", {-1, 7, 1000}},  // 192 images in batches of 32
      {"updates", {-1, 1e18, std::uint64_t{1} << 63}},
      {"skipped", {-1, std::numeric_limits<std::int64_t>::max()}},
      {"good_in_row", {-1}},
      {"loss_scale", {0, -1, 1e308, nullptr}},
      {"best_top1", {2, "x"}},
      {"best_epoch", {-1, 2}},  // of one
      {"best_loss", {-1, 1e301, "x"}},
      {"stale", {-1, 1e9}},
      {"top", {{{2, 0.5}}, {{1, "x"}}, {1}, "x"}},
      {"train_seconds", {-1, 1e308, nullptr}},
      {"epoch_seconds", {-1, 1e308}},
      {"images", {-1, 1e18}},
      {"last_top1", {2, nullptr}},
      {"last_loss", {-2, 1e308}}};
  for (const auto& [field, values] : progress) {
    for (const json& value : values) changed("axial.progress", field, value, "expected ");
  }
  // Whoever reads it: nothing starts from such a file.
  app::SafetensorsFile bad = good;
  json all = json::parse(good.metadata.at("axial.progress"));
  all["epoch"] = -3;
  bad.metadata["axial.progress"] = all.dump();
  app::write_safetensors(folder_ / "bad.safetensors", bad);
  for (const std::vector<std::string>& command : {std::vector<std::string>{"eval", "bad.safetensors"},
                                                  {"info", "bad.safetensors"},
                                                  {"train", "--resume=bad.safetensors", "-o", "next"}}) {
    expect_error(
        run(command), 1,
        {"bad.safetensors: the metadata is damaged: axial.progress: epoch: expected an integer in 0..1000000, "
         "found -3"});
  }
  EXPECT_FALSE(fs::exists(folder_ / "next"));
  app::SafetensorsFile odd = good;
  odd.metadata["axial.version"] = "1\x1b[2Jfake";
  app::write_safetensors(folder_ / "odd.safetensors", odd);
  const Outcome o = run({"info", "odd.safetensors"});
  EXPECT_EQ(o.out.find('\x1b'), std::string::npos) << "nothing in a file steers the terminal";
}

TEST_F(ResultFaults, MetricsThatCannotBeReadAreNotNoEpochs) {
  const fs::path metrics = folder_ / "run" / "metrics.csv";
  std::string text = read_file(metrics);
  fs::remove(metrics);
  fs::create_directory(metrics);
  Outcome o = run({"runs", "."});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("  unreadable  "), std::string::npos) << o.out;
  EXPECT_NE(o.err.find("run/metrics.csv: is a folder, expected a file"), std::string::npos) << o.err;
  EXPECT_TRUE(json::parse(run({"runs", ".", "--json"}).out).at(0).at("epochs").is_null());
  fs::remove(metrics);
  std::ofstream(metrics) << text.replace(text.find("\n1,"), 3, "\n1e30,");
  o = run({"runs", "."});
  EXPECT_NE(o.err.find("metrics.csv: row 2: expected an epoch above 0, found '1e30'; such rows are left out"),
            std::string::npos)
      << o.err;
  expect_error(run({"train", "--resume=run", "train.epochs=2"}), 1,
               {"metrics.csv: row 2: expected an integer as epoch, found '1e30'"});
  EXPECT_EQ(read_file(metrics), text);
}

}  // namespace
}  // namespace axial::test
