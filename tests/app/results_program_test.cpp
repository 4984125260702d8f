// eval, predict, export, runs, report and explain, on one trained run.
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include <png.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include "app/checkpoint/safetensors.h"
#include "tests/app/pictures.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

struct Decoded {
  int width = 0, height = 0;
  std::set<std::uint32_t> colours;
};

Decoded decode(const fs::path& path) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_file(&image, path.c_str()) == 0) return {};
  image.format = PNG_FORMAT_RGBA;
  std::vector<std::uint32_t> pixels(static_cast<std::size_t>(image.width) * image.height);
  if (png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr) == 0) return {};
  return {static_cast<int>(image.width), static_cast<int>(image.height), {pixels.begin(), pixels.end()}};
}

class Results : public ProgramTest {
 protected:
  // Two epochs, with averaged weights; made by the first test that needs it.
  void SetUp() override {
    ProgramTest::SetUp();
    static const fs::path shared = [this] {
      std::string pattern = (fs::temp_directory_path() / "axial-test-XXXXXX").string();
      EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
      const Outcome o = run(small(pattern + "/run", {"train.epochs=2"}));
      EXPECT_EQ(o.code, 0) << o.err;
      static const struct Remover {
        fs::path path;
        ~Remover() {
          std::error_code ignored;
          fs::remove_all(path, ignored);
        }
      } remover{pattern};
      return fs::path(pattern);
    }();
    run_ = (shared / "run").string();
  }
  std::string run_;
};

TEST_F(Results, EvalWritesScoresThatAgreeWithItsLine) {
  const Outcome o = run({"eval", run_, "--json", "scores.json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const json line = json::parse(o.out), scores = json::parse(read_file(folder_ / "scores.json"));
  EXPECT_EQ(scores.at("top1"), line.at("top1"));
  EXPECT_NEAR(scores.at("loss").get<double>(), line.at("loss").get<double>(), 1e-4);
  EXPECT_EQ(scores.at("samples"), 64);
  EXPECT_GE(scores.at("top5"), scores.at("top1"));
  EXPECT_GE(scores.at("ece"), 0);
  ASSERT_EQ(scores.at("classes").size(), 10u);
  int correct = 0, all = 0;
  for (int i = 0; i < 10; ++i) {
    int support = 0;
    for (int j = 0; j < 10; ++j) support += scores.at("confusion")[i][j].get<int>();
    EXPECT_EQ(scores.at("classes")[i].at("support"), support);
    correct += scores.at("confusion")[i][i].get<int>();
    all += support;
  }
  EXPECT_EQ(all, 64);
  EXPECT_NEAR(correct / 64.0, line.at("top1").get<double>(), 1e-6);
  EXPECT_NE(o.err.find("precision  recall"), std::string::npos) << o.err;
  expect_error(run({"eval", run_, "--json", "nowhere/x.json"}), 1, {"nowhere/x.json"});
  expect_error(run({"eval", run_, "other"}), 2, {"other: expected key=value, such as data.dir=/data"});
}

TEST_F(Results, PredictTakesFoldersListsAndNumbersInOrderAndInBatches) {
  write_picture(folder_ / "set/a, b.png", 20, 16, 0, 255);
  write_picture(folder_ / "set/deeper/c.png", 40, 40, 200, 30);
  write_picture(folder_ / "d.png", 16, 20, 90, 90);
  std::ofstream(folder_ / "set/note.txt") << "x";
  const std::vector<std::string> expected = {"d.png", "set/a, b.png", "set/deeper/c.png", "3"};
  std::string answers;
  for (const char* batch : {"data.eval_batch_size=2", "data.eval_batch_size=64"}) {
    const Outcome o = run({"predict", run_, "d.png", "set", "3", "--top", "2", "--format", "jsonl", batch});
    ASSERT_EQ(o.code, 0) << o.err;
    EXPECT_NE(o.err.find("1 other files are left out, the first is set/note.txt"), std::string::npos) << o.err;
    const std::vector<std::string> found = lines(o.out);
    ASSERT_EQ(found.size(), expected.size()) << o.out;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const json line = json::parse(found[i]);
      EXPECT_EQ(line.at("input"), expected[i]);
      EXPECT_EQ(line.at("classes").size(), 2u);
      EXPECT_GE(line.at("classes")[0].at("probability"), line.at("classes")[1].at("probability"));
    }
    EXPECT_TRUE(answers.empty() || o.out == answers) << "whatever the batches: " << o.out << answers;
    answers = o.out;
  }
  // The same from a list; what cannot be read is named, the rest is answered.
  std::ofstream(folder_ / "list") << "d.png\r\n\nmissing.png\nset\n3\n";
  const std::string command = "cd '" + folder_.string() + "' && '" AXIAL_PROGRAM "' predict '" + run_ +
                              "' - --top 2 --format csv < list > out.csv 2> err";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  const std::vector<std::string> rows = lines(read_file(folder_ / "out.csv"));
  ASSERT_EQ(rows.size(), 1 + 8u) << read_file(folder_ / "out.csv") << read_file(folder_ / "err");
  EXPECT_EQ(rows[0], "input,rank,class,probability");
  EXPECT_EQ(rows[1].rfind("d.png,1,", 0), 0u) << rows[1];
  EXPECT_EQ(rows[3].rfind("\"set/a, b.png\",1,", 0), 0u) << rows[3];
  EXPECT_NE(read_file(folder_ / "err").find("missing.png"), std::string::npos);
  std::ofstream(folder_ / "list") << "d.png\n" << '\0' << "x\n";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_EQ(lines(read_file(folder_ / "out.csv")).size(), 1 + 2u) << "the good one is answered";
  EXPECT_NE(read_file(folder_ / "err").find("standard input, line 2: holds a zero byte"), std::string::npos);
  std::ofstream(folder_ / "list") << "d.png\n" << std::string(1 << 17, '/');
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_EQ(lines(read_file(folder_ / "out.csv")).size(), 1 + 2u) << "the good one is answered";
  EXPECT_NE(read_file(folder_ / "err").find("standard input, line 2: is longer than 65536 bytes"), std::string::npos);
  std::ofstream(folder_ / "list") << "d.png";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 0) << "a last line without its end";
  EXPECT_EQ(lines(read_file(folder_ / "out.csv")).size(), 1 + 2u);
  fs::create_directories(folder_ / "empty");
  expect_error(run({"predict", run_, "empty"}), 1, {"empty: no .png, .jpg or .jpeg files in it"});
  expect_error(run({"predict", run_, "d.png", "--format", "xml"}), 2,
               {"--format: expected text, csv or jsonl, found xml"});
}

TEST_F(Results, ExportHoldsTheWeightsUnderTheModulesNames) {
  const Outcome o = run({"export", run_, "-o", "w.safetensors"});
  ASSERT_EQ(o.code, 0) << o.err;
  const json line = json::parse(o.out);
  EXPECT_EQ(line.at("weights"), "ema");
  const app::SafetensorsFile all = app::read_safetensors(run_ + "/checkpoints/best.safetensors");
  const app::SafetensorsFile file = app::read_safetensors(folder_ / "w.safetensors");
  EXPECT_EQ(line.at("tensors"), file.tensors.size());
  // What training's header calls the model's parameters, and what else is in the file: the stem's statistics.
  const std::string said = " " + line.at("parameters").dump() + " parameters,";
  EXPECT_NE(read_file(fs::path(run_) / "train.log").find(said), std::string::npos) << said;
  EXPECT_GT(line.at("elements"), line.at("parameters"));
  std::size_t expected = 0;
  for (const auto& [name, tensor] : all.tensors) {
    if (name.rfind("ema.", 0) != 0) continue;
    ++expected;
    const auto found = file.tensors.find(name.substr(4));
    ASSERT_NE(found, file.tensors.end()) << name;
    EXPECT_TRUE(found->second.equal(tensor)) << name;
  }
  EXPECT_EQ(file.tensors.size(), expected);
  EXPECT_EQ(file.tensors.count("blocks.0.attention.row_qkv.weight"), 1u);
  EXPECT_EQ(file.metadata.at("format"), "pt");
  EXPECT_EQ(json::parse(file.metadata.at("axial.classes")).size(), 10u);
  EXPECT_EQ(json::parse(file.metadata.at("axial.image")).at("mean").size(), 1u);
  EXPECT_NE(file.metadata.at("axial.config").find("dim: [16, 32]"), std::string::npos);

  ASSERT_EQ(run({"export", run_, "-o", "m.safetensors", "--weights", "model"}).code, 0);
  const app::SafetensorsFile model = app::read_safetensors(folder_ / "m.safetensors");
  EXPECT_TRUE(model.tensors.at("head.weight").equal(all.tensors.at("model.head.weight")));
  EXPECT_FALSE(model.tensors.at("head.weight").equal(file.tensors.at("head.weight")));
  const std::string own = run_ + "/checkpoints/best.safetensors";
  expect_error(run({"export", run_, "-o", own}), 1, {"is what is read"});
  EXPECT_TRUE(app::read_safetensors(own).tensors.count("optimizer.adam.step") ==
              all.tensors.count("optimizer.adam.step"));
  expect_error(run({"export", run_}), 2, {"--output"});
  expect_error(run({"export", "w.safetensors", "-o", "x"}), 1, {"w.safetensors: not a checkpoint"});

  // What can be done with such a file.
  EXPECT_NE(run({"info", "w.safetensors"}).out.find("axial.config: "), std::string::npos);
  const Outcome described = run({"info", "w.safetensors", "--config"});
  ASSERT_EQ(described.code, 0) << described.err;
  for (const char* part : {"  blocks.0.attention.row_qkv.weight [48, 16] Float\n", "axial.weights: ema\n",
                           "axial.classes: [\"class_0\"", "\n  dim: [16, 32]"}) {
    EXPECT_NE(described.out.find(part), std::string::npos) << part << " in " << described.out;
  }
  const Outcome started = run(small("from", {"train.epochs=1", "train.init_from=w.safetensors"}));
  ASSERT_EQ(started.code, 0) << started.err;
  EXPECT_NE(started.err.find("w.safetensors: " + std::to_string(expected) + " tensors loaded (averages)"),
            std::string::npos)
      << started.err;
  EXPECT_EQ(started.err.find("anew"), std::string::npos) << started.err;
  const Outcome others =
      run(small("other", {"train.epochs=1", "train.init_from=w.safetensors", "data.synthetic_classes=4"}));
  ASSERT_EQ(others.code, 0) << others.err;
  EXPECT_NE(others.err.find("the head starts anew (4 classes, there 10)"), std::string::npos) << others.err;
  app::SafetensorsFile strange = file;
  strange.metadata = {{"written by", "some\x1b[31mbody"}};
  app::write_safetensors(folder_ / "s.safetensors", strange);
  const Outcome theirs = run({"info", "s.safetensors"});
  ASSERT_EQ(theirs.code, 0) << theirs.err;
  EXPECT_NE(theirs.out.find("no weights of axial export"), std::string::npos) << theirs.out;
  EXPECT_NE(theirs.out.find("written by: some?[31mbody\n"), std::string::npos) << theirs.out;
  expect_error(run(small("no", {"train.init_from=s.safetensors"})), 1, {"s.safetensors: not a checkpoint"});
  strange.metadata = {{"axial.weights", "model"}, {"axial.classes", "[1"}};
  app::write_safetensors(folder_ / "s.safetensors", strange);
  expect_error(run(small("no", {"train.init_from=s.safetensors"})), 1,
               {"s.safetensors: the metadata is damaged: axial.classes: expected JSON, found [1"});
}

TEST_F(Results, RunsAreListedWithTheirStates) {
  const std::string root = fs::path(run_).parent_path().string();
  const Outcome o = run({"runs", root});
  ASSERT_EQ(o.code, 0) << o.err;
  ASSERT_EQ(lines(o.out).size(), 2u) << o.out;
  EXPECT_NE(o.out.find("finished  2/2 "), std::string::npos) << o.out;
  const json all = json::parse(run({"runs", "--json", root}).out);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].at("state"), "finished");
  EXPECT_EQ(all[0].at("dataset"), "synthetic");
  EXPECT_EQ(all[0].at("best_of"), "test set");
  EXPECT_NE(o.out.find("%    test set  "), std::string::npos) << o.out;
  EXPECT_EQ(all[0].at("best_top1"), json::parse(run({"eval", run_}).out).at("top1"));
  fs::create_directories(folder_ / "runs");
  EXPECT_NE(run({"runs"}).err.find("runs: no runs in it"), std::string::npos);
  expect_error(run({"runs", "nowhere"}), 1, {"nowhere"});
}

TEST_F(Results, ExplainDrawsTheMapOverThePicture) {
  write_picture(folder_ / "photo.png", 90, 120, 0, 255);
  for (const auto& [map, width] :
       std::vector<std::pair<std::string, int>>{{"both", 448}, {"rows", 448}, {"all", 4 * 448 + 24}}) {
    const Outcome o = run({"explain", run_, "photo.png", "-o", map + ".png", "--map", map});
    ASSERT_EQ(o.code, 0) << o.err;
    const json line = json::parse(o.out);
    EXPECT_EQ(line.at("classes").size(), 3u);
    EXPECT_GE(line.at("peak").at("both"), 1);
    const Decoded picture = decode(folder_ / (map + ".png"));
    EXPECT_EQ(picture.width, width);
    EXPECT_EQ(picture.height, 560);  // 20 x 16 pixels, 28 times
    EXPECT_GT(picture.colours.size(), 50u);
  }
  EXPECT_NE(read_file(folder_ / "both.png"), read_file(folder_ / "rows.png"));
  const Outcome number = run({"explain", run_, "3", "-o", "number.png"});
  ASSERT_EQ(number.code, 0) << number.err;
  EXPECT_EQ(decode(folder_ / "number.png").height, 560);
  const json classes = json::parse(number.out).at("classes"),
             answer = json::parse(run({"predict", run_, "3", "--top", "3", "--format", "jsonl"}).out).at("classes");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(classes[i].at("class"), answer[i].at("class")) << number.out;
  expect_error(run({"explain", run_, "64", "-o", "x.png"}), 1, {"64: no such test image (0 to 63)"});
  expect_error(run({"explain", run_, "-1", "-o", "x.png"}), 1, {"-1: no such test image"});
  expect_error(run({"explain", run_, "none.png", "-o", "x.png"}), 1, {"none.png"});
  EXPECT_FALSE(fs::exists(folder_ / "x.png"));
  expect_error(run({"explain", run_, "photo.png", "-o", "x.png", "--map", "diagonal"}), 2, {"--map"});
}

// What a rename would put a result over: a run's own files by any path, what is read, devices, links to open files.
TEST_F(Results, OutputsReplaceNothingThatIsNeeded) {
  fs::copy(run_, folder_ / "run", fs::copy_options::recursive);
  const std::string mine = (folder_ / "run").string();
  write_picture(folder_ / "shot.png", 12, 12, 10, 200);
  fs::create_symlink("run/checkpoints/best.safetensors", folder_ / "link");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  const std::vector<std::vector<std::string>> commands = {
      {"eval", mine, "--json"}, {"export", mine, "-o"}, {"report", mine, "-o"}, {"explain", mine, "shot.png", "-o"}};
  const std::vector<std::string> needed = {"run/checkpoints/last.safetensors",
                                           "run/checkpoints/../checkpoints/best.safetensors",
                                           "run/checkpoints/new",
                                           "run/config.yaml",
                                           "run/metrics.csv",
                                           "run/train.log",
                                           "run/.lock",
                                           "link",
                                           "pipe",
                                           "/dev/stdout"};
  const auto all_of_it = [&] {
    std::string bytes;
    for (const auto& entry : fs::recursive_directory_iterator(mine)) {
      if (entry.is_regular_file()) bytes += entry.path().string() + read_file(entry.path());
    }
    return bytes + read_file(folder_ / "shot.png");
  };
  const std::string before = all_of_it();
  for (const std::vector<std::string>& command : commands) {
    for (const std::string& output : needed) {
      if (command[0] != "eval" && output != "link" && output != "pipe") continue;  // one check serves all
      std::vector<std::string> arguments = command;
      arguments.push_back(output);
      const Outcome o = run(arguments);
      EXPECT_EQ(o.code, 1) << command[0] << " " << output << ": " << o.err;
      EXPECT_EQ(lines(o.err).size(), 1u) << o.err;
      EXPECT_EQ(o.out, "");
    }
  }
  EXPECT_EQ(run({"explain", mine, "shot.png", "-o", "shot.png"}).code, 1);
  EXPECT_TRUE(all_of_it() == before);
  fs::create_symlink("aim.html", folder_ / "page.html");
  EXPECT_EQ(run({"eval", mine, "--json", "page.html"}).code, 0);
  EXPECT_TRUE(fs::is_symlink(folder_ / "page.html")) << "links are followed";
  EXPECT_TRUE(fs::is_regular_file(folder_ / "aim.html"));
}

TEST_F(Results, ReportIsOnePageThatABrowserDraws) {
  // A second run that cannot be evaluated: the page says so and shows the rest.
  fs::copy(run_, folder_ / "other", fs::copy_options::recursive);
  fs::remove_all(folder_ / "other/checkpoints");
  fs::create_directory(folder_ / "other/checkpoints");
  const Outcome o = run({"report", run_, "other", "-o", "report.html"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("other is not evaluated"), std::string::npos) << o.err;
  const std::string page = read_file(folder_ / "report.html");
  EXPECT_EQ(json::parse(o.out).at("bytes"), page.size());
  for (const char* part : {"Confusion matrix", "Not evaluated:", "Worst mistakes", "data:image/png;base64,iVBOR"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("http"), std::string::npos) << "nothing is fetched";
  expect_error(run({"report", "nowhere", "-o", "x.html"}), 1, {"nowhere"});
  expect_error(run({"report", run_, "-o", "nowhere/x.html"}), 1, {"nowhere/x.html"});

  if (std::system("command -v chromium > /dev/null 2>&1") != 0) GTEST_SKIP() << "chromium is not installed";
  const std::string browser =
      "cd '" + folder_.string() +
      "' && timeout 120 chromium --headless --no-sandbox --disable-gpu "
      "--user-data-dir=profile --hide-scrollbars --window-size=1280,3000 --screenshot=page.png "
      "'file://" +
      (folder_ / "report.html").string() + "' > browser.log 2>&1";
  ASSERT_EQ(std::system(browser.c_str()), 0) << read_file(folder_ / "browser.log");
  const Decoded shot = decode(folder_ / "page.png");
  EXPECT_EQ(shot.width, 1280);
  EXPECT_GT(shot.colours.size(), 500u) << "curves, matrix and pictures have many colours";
}

// A copy outside of a run is protected by what the command reads, not by where it lies.
TEST_F(Results, NoResultReplacesTheCheckpointThatItComesFrom) {
  const fs::path copy = folder_ / "copy.safetensors";
  fs::copy_file(fs::path(run_) / "checkpoints" / "best.safetensors", copy);
  const auto size = fs::file_size(copy);
  expect_error(run({"eval", "copy.safetensors", "--json", "copy.safetensors"}), 1,
               {"copy.safetensors", "is what is read"});
  expect_error(run({"explain", "copy.safetensors", "0", "-o", "copy.safetensors"}), 1,
               {"copy.safetensors", "is what is read"});
  EXPECT_EQ(fs::file_size(copy), size);
}

// A row of 4096 pixels, enlarged until it is high enough to look at, would be 448 x 1 835 008.
TEST_F(Results, AFlatPictureIsDrawnWithinBounds) {
  auto arguments = small("flat", {"train.epochs=1", "data.synthetic_height=1", "data.synthetic_width=512",
                                  "data.synthetic_train=32", "data.synthetic_test=32", "data.batch_size=8",
                                  "model.stem_stride=1", "model.stem_channels=[]", "augment.pad_crop=0"});
  const Outcome trained = run(arguments);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome o = run({"explain", "flat", "0", "-o", "flat.png"});
  ASSERT_EQ(o.code, 0) << o.err;
  const Decoded drawn = decode(folder_ / "flat.png");
  EXPECT_EQ(drawn.width, 4096);
  EXPECT_EQ(drawn.height, 8);
}

TEST_F(Results, AStandardInputThatCannotBeReadIsNoEmptyList) {
  const std::string command = std::string(AXIAL_PROGRAM) + " predict " + run_ + " - < / > " +
                              (folder_ / "out").string() + " 2> " + (folder_ / "err").string();
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_NE(read_file(folder_ / "err").find("standard input: cannot be read"), std::string::npos);
}

}  // namespace
}  // namespace axial::test
