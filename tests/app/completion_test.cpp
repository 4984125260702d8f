// The scripts of `axial completion`, in the shells that they are for.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "app/config/schema.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

using Words = std::vector<std::string>;

Words lines(const std::string& text) {
  Words result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

class Completion : public ProgramTest {
 protected:
  void write_script(const std::string& shell) {
    const Outcome o = run({"completion", shell});
    ASSERT_EQ(o.code, 0) << o.err;
    std::ofstream(folder_ / shell) << o.out;
  }

  // What a shell prints for a program of its own; a failure is a line of its own.
  std::string output(const std::string& shell, const std::string& program) {
    std::ofstream(folder_ / "program") << program;
    const std::string out = (folder_ / "shell-out").string();
    const std::string line = "cd '" + folder_.string() + "' && " + shell + " program > " + out + " 2>&1";
    EXPECT_EQ(std::system(line.c_str()), 0) << read_file(out);
    return read_file(out);
  }

  // What bash offers after `typed`. `breaks`: whether "=" parts words, as it does unless the user has changed that.
  Words bash(const std::string& typed, bool breaks = true) {
    return lines(output("bash --norc",
                        "set -u; source ./bash\nset +u; complete -p axial > /dev/null || echo unregistered\n"
                        "COMP_WORDBREAKS=$' \\t\\n\"\\'><" +
                            std::string(breaks ? "=" : "") +
                            ";|&(:'\n"
                            "COMP_LINE='" +
                            typed +
                            "'; COMP_POINT=${#COMP_LINE}; _axial axial x y\n"
                            "[[ ${#COMPREPLY[@]} == 0 ]] || printf '%s\\n' \"${COMPREPLY[@]}\"\n"));
  }

  Words zsh(const std::string& words, int current) {
    return lines(output("zsh -f",
                        "source ./zsh\n"
                        "compset() { : }; _files() { print files }\n"
                        "compadd() { print -l -- ${@:#--} }; _describe() { print -l -- \"${(@P)4}\" }\n"
                        "words=(" +
                            words + "); CURRENT=" + std::to_string(current) + "; _axial\n"));
  }
};

TEST_F(Completion, BashCompletesCommandsOptionsAndTheirValues) {
  write_script("bash");
  EXPECT_EQ(bash("axial tr"), Words{"train"});
  EXPECT_TRUE(has(bash("axial "), "predict"));
  EXPECT_EQ(bash("axial train --res"), Words{"--resume"});
  EXPECT_EQ(bash("axial train --opt "), (Words{"sgd", "adamw", "muon"}));
  EXPECT_EQ(bash("axial train --opt=s"), Words{"sgd"});
  EXPECT_EQ(bash("axial train --opt=s", false), Words{"--opt=sgd"});
  EXPECT_EQ(bash("axial train -c x.yaml --device c"), (Words{"cpu", "cuda"}));
  EXPECT_EQ(bash("axial eval runs/x --device c"), (Words{"cpu", "cuda"}));
  EXPECT_EQ(bash("axial completion "), (Words{"bash", "zsh"}));
  EXPECT_TRUE(bash("axial train -c con").empty()) << "files are the shell's own";
  EXPECT_TRUE(bash("axial nonsense ").empty());
  EXPECT_FALSE(has(bash("axial train --"), "--resume-newest")) << "not in the help";
}

TEST_F(Completion, BashCompletesKeysAndTheirValues) {
  write_script("bash");
  EXPECT_EQ(bash("axial train "), (Words{"model.", "data.", "augment.", "optim.", "train."}));
  EXPECT_EQ(bash("axial train optim.l"), (Words{"optim.lr=", "optim.layer_decay="}));
  EXPECT_EQ(bash("axial train -c a.yaml optim.name="), (Words{"sgd", "adamw", "muon"}));
  EXPECT_EQ(bash("axial train optim.name=a"), Words{"adamw"});
  EXPECT_EQ(bash("axial train optim.name=a", false), Words{"optim.name=adamw"});
  EXPECT_EQ(bash("axial train augment.flip=t"), Words{"true"});
  EXPECT_TRUE(bash("axial train optim.lr=").empty());
  std::size_t count = 0;
  for (const app::Key& key : app::schema()) count += key.section() == "train" ? 1 : 0;
  EXPECT_EQ(bash("axial config train.").size(), count) << "every key of a section";
  const Words eval = bash("axial eval runs/x data.");
  EXPECT_TRUE(has(eval, "data.dir="));
  EXPECT_FALSE(has(eval, "data.batch_size=")) << "what a trained model cannot honour";
}

TEST_F(Completion, ZshReadsItsScriptAndOffersTheSame) {
  if (std::system("command -v zsh > /dev/null 2>&1") != 0) GTEST_SKIP() << "zsh is not installed";
  write_script("zsh");
  output("zsh -n", read_file(folder_ / "zsh"));
  const Words commands = zsh("axial ''", 2);
  EXPECT_TRUE(std::any_of(commands.begin(), commands.end(), [](const auto& w) { return w.rfind("train:", 0) == 0; }));
  EXPECT_EQ(zsh("axial train --opt ''", 4), (Words{"sgd", "adamw", "muon"}));
  EXPECT_EQ(zsh("axial train optim.name=", 3), (Words{"sgd", "adamw", "muon"}));
  EXPECT_EQ(zsh("axial completion ''", 3), (Words{"bash", "zsh"}));
  EXPECT_EQ(zsh("axial train data.dir=", 3), Words{"files"});
  const Words keys = zsh("axial train ''", 3);
  EXPECT_TRUE(has(keys, "train.epochs:passes over the training set")) << keys.size();
}

}  // namespace
}  // namespace axial::test
