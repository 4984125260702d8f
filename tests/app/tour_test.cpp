// README's tour ("A newcomer's hour"), command by command as it stands there, on drawn pictures.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "app/checkpoint/safetensors.h"
#include "tests/app/program.h"
#include "tests/data/image_files.h"

namespace axial::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::vector<std::string> kClasses = {"bird", "cat", "dog"};

// The lines of the ```sh blocks below a heading, up to the next one.
std::vector<std::string> commands_below(const std::string& heading) {
  std::ifstream file(std::string(AXIAL_SOURCE_DIR) + "/README.md");
  std::vector<std::string> commands;
  bool below = false, code = false;
  for (std::string line; std::getline(file, line);) {
    if (!code && line.rfind("## ", 0) == 0) below = line == heading;
    if (!below) continue;
    if (line.rfind("```", 0) == 0) {
      code = line == "```sh";
    } else if (code && !line.empty()) {
      commands.push_back(line);
    }
  }
  return commands;
}

// A shape on a noisy ground, both in a colour of their class's own: a blue disc, a red bar across, a green one upright.
// What a model learns in some seconds.
void draw(const fs::path& path, std::size_t kind, std::mt19937& random) {
  fs::create_directories(path.parent_path());
  const auto within = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const int width = within(70, 130), height = within(70, 130), x0 = width / 2 + within(-9, 9),
            y0 = height / 2 + within(-9, 9), size = within(16, 22);
  const std::size_t own = (kind + 2) % 3;
  data::test::Bytes bytes;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const int dx = std::abs(x - x0), dy = std::abs(y - y0);
      const bool inside = kind == 0   ? dx * dx + dy * dy < size * size
                          : kind == 1 ? dy < size / 3 && dx < 2 * size
                                      : dx < size / 3 && dy < 2 * size;
      for (std::size_t part = 0; part < 3; ++part) {
        const int least = part != own ? 0 : inside ? 180 : 60;
        bytes.push_back(static_cast<std::uint8_t>(within(least, least + 75)));
      }
    }
  }
  if (path.extension() == ".png") {
    data::test::write_png(path, {.width = width, .height = height}, bytes);
  } else {
    data::test::write_jpeg(path, {.width = width, .height = height}, bytes);
  }
}

// What follows `option` in a command.
std::string after(const std::string& command, const std::string& option) {
  std::istringstream words(command);
  for (std::string word; words >> word;) {
    if (word == option && words >> word) return word;
  }
  return "";
}

class Tour : public ProgramTest {
 protected:
  // As a newcomer's folder: the sources with the program built, and pictures.
  void SetUp() override {
    ProgramTest::SetUp();
    fs::create_directories(folder_ / "build");
    fs::create_directories(folder_ / "bin");
    fs::create_symlink(AXIAL_PROGRAM, folder_ / "build/axial");
    fs::create_symlink(std::string(AXIAL_SOURCE_DIR) + "/configs", folder_ / "configs");
    std::mt19937 random(3);
    for (std::size_t c = 0; c < kClasses.size(); ++c) {
      for (int i = 0; i < 40; ++i)
        draw(folder_ / "pictures" / kClasses[c] / (std::to_string(i) + (i % 2 ? ".jpg" : ".png")), c, random);
      draw(folder_ / "inbox" / (kClasses[c] + ".png"), c, random);
    }
    draw(folder_ / "inbox/photo.jpg", 1, random);
    // TensorBoard serves until it is stopped: in its place one that looks for what it would show.
    std::ofstream(folder_ / "bin/tensorboard")
        << "#!/bin/sh\ntest \"$1\" = --logdir && find \"$2\" -name 'events.out.tfevents.*' | grep -c .\n";
    fs::permissions(folder_ / "bin/tensorboard", fs::perms::owner_all);
  }

  Outcome shell(const std::string& command) {
    std::ofstream(folder_ / "command") << command << '\n';
    const std::string line = "cd '" + folder_.string() + "' && PATH=\"$PWD/bin:$PATH\" bash -eu command > out 2> err";
    const int status = std::system(line.c_str());
    return {WEXITSTATUS(status), read_file(folder_ / "out"), read_file(folder_ / "err")};
  }

  // The result of axial's `command`, as a newcomer would look at it.
  void look(const std::string& what, const std::string& command, const Outcome& o) {
    const std::string output = after(command, "-o");
    if (what == "train" && command.find("--dry-run") != std::string::npos) {
      EXPECT_NE(o.out.find("memory: "), std::string::npos) << o.out;
      EXPECT_NE(o.err.find("3 classes"), std::string::npos) << o.err;
      EXPECT_FALSE(fs::exists(folder_ / "runs")) << "nothing is written";
    } else if (what == "train") {
      const json line = json::parse(o.out);
      EXPECT_EQ(line.at("epochs"), std::stoi(after(command, "--epochs"))) << o.out;
      EXPECT_GE(line.at("top1"), 0.7) << "it learns: " << o.out << o.err;
      EXPECT_EQ(line.at("run"), output.empty() ? after(command, "--resume") : output);
    } else if (what == "runs") {
      EXPECT_NE(o.out.find("finished"), std::string::npos) << o.out;
    } else if (what == "report") {
      const std::string page = read_file(folder_ / output);
      for (const char* part : {"first", "second", "Confusion matrix", "Worst mistakes", "</html>"})
        EXPECT_NE(page.find(part), std::string::npos) << part;
    } else if (what == "eval") {
      EXPECT_EQ(json::parse(read_file(folder_ / after(command, "--json"))).at("classes").size(), 3u);
      EXPECT_GE(json::parse(o.out).at("top1"), 0.7) << o.out;
    } else if (what == "predict" && after(command, ">").empty()) {
      EXPECT_EQ(o.out.rfind("inbox/photo.jpg\tcat\t", 0), 0u) << o.out;
      EXPECT_EQ(lines_of(o.out), 3u) << o.out;
    } else if (what == "predict") {
      const std::string answers = read_file(folder_ / after(command, ">"));
      EXPECT_EQ(lines_of(answers), 1 + kClasses.size() + 1) << answers;
      for (const std::string& name : kClasses)
        EXPECT_NE(answers.find("inbox/" + name + ".png,1," + name + ","), std::string::npos) << answers;
    } else if (what == "explain") {
      EXPECT_EQ(read_file(folder_ / output).substr(1, 3), "PNG");
      EXPECT_EQ(json::parse(o.out).at("classes")[0].at("class"), "cat") << o.out;
    } else if (what == "export") {
      EXPECT_EQ(app::read_safetensors(folder_ / output).tensors.at("head.weight").size(0), 3);
    } else {
      ADD_FAILURE() << "nothing is known of what axial " << what << " should bring";
    }
  }
};

TEST_F(Tour, OfTheReadmeWorksAsItStandsThere) {
  std::vector<std::string> done;
  for (const std::string& command : commands_below("## A newcomer's hour")) {
    SCOPED_TRACE(command);
    const Outcome o = shell(command);
    ASSERT_EQ(o.code, 0) << o.out << o.err;
    std::istringstream words(command);
    std::string program, what;
    words >> program >> what;
    if (program == "build/axial") {
      look(what, command, o);
      EXPECT_EQ(o.err.find("warning"), std::string::npos) << o.err;
      if (done.empty() || done.back() != what) done.push_back(what);
    } else {
      EXPECT_NE(o.out, "") << "shows something";
    }
  }
  // Folder of own images, train, watch, report, predict, explain, export: a tour that lost a stop is no longer one.
  const std::vector<std::string> stops = {"train", "runs", "train", "report", "eval", "predict", "explain", "export"};
  EXPECT_EQ(done, stops);
}

}  // namespace
}  // namespace axial::test
