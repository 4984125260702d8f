// Configuration: defaults, files, overrides, printing.
#include <algorithm>
#include <filesystem>
#include <regex>
#include <sstream>

#include <gtest/gtest.h>

#include "app/config/describe.h"
#include "app/config/load.h"
#include "app/config/schema.h"
#include "app/config/value.h"
#include "tests/app/run_scratch.h"

namespace axial::app {
namespace {

using testing::Scratch;

Config with(const std::vector<std::string>& overrides) { return load_config({}, overrides); }

TEST(Config, EveryDefaultIsLegalAndEveryKeyIsBoundToItsOwnField) {
  const Config defaults = load_config({}, {});
  EXPECT_EQ(defaults.model.dim, std::vector<std::int64_t>{64});
  EXPECT_EQ(defaults.data.batch_size, 128);
  EXPECT_DOUBLE_EQ(defaults.optim.lr, 1e-3);
  EXPECT_TRUE(differing_keys(defaults, load_config({}, {})).empty());

  // Another value in each field shows up under that key and under no other.
  for (const Key& key : schema()) {
    Config other = defaults;
    std::visit(
        [](auto* field) {
          using T = std::remove_pointer_t<decltype(field)>;
          if constexpr (std::is_same_v<T, bool>) {
            *field = !*field;
          } else if constexpr (std::is_same_v<T, std::string>) {
            *field += "x";
          } else if constexpr (std::is_arithmetic_v<T>) {
            *field += 1;
          } else {
            field->push_back(1);
          }
        },
        key.field(other));
    EXPECT_EQ(differing_keys(defaults, other), std::vector<std::string>{key.path});
  }
}

TEST(Config, NoKeyStandsTwiceAndNoOtherNameIsAKeyOfItsOwnSection) {
  std::set<std::string> paths;
  for (const Key& key : schema()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.help.empty()) << key.path;
  }
}

TEST(Config, EveryShippedFileLoads) {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(AXIAL_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".yaml" && entry.path().extension() != ".yml") continue;
    ++count;
    EXPECT_NO_THROW({
      const Config config = load_config({entry.path().string()}, {});
      EXPECT_TRUE(differing_keys(config, parse_config(to_yaml(config), "printed")).empty());
    }) << entry.path();
  }
  EXPECT_GT(count, 0);
}

TEST(Config, PrintedConfigurationLoadsBackExactly) {
  Config config = load_config({}, {});
  const double reals[] = {0.1, 1.0 / 3, 1e-300, 5e-324, 0.1 + 0.2, 999.99999999999989, 1e-8, 123.456789};
  for (const double real : reals) {
    config.optim.lr = config.optim.weight_decay = real;
    config.data.mean = {-real, real};
    config.data.std = {std::max(real, 1e-36), 0.5};
    const Config back = parse_config(to_yaml(config), "printed");
    EXPECT_EQ(back.optim.lr, real);
    EXPECT_EQ(back.data.mean, config.data.mean);
    EXPECT_TRUE(differing_keys(config, back).empty());
    EXPECT_TRUE(differing_keys(config, parse_config(to_yaml(config, /*with_help=*/true), "printed")).empty());
  }
  config.train.seed = 18446744073709551615u;
  const std::string texts[] = {"",  "a b",  "é/ü",   "null", "~",   "true", "12",        "1e-3",  "a: b",   "#x",
                               "-", "'q'",  "\"q\"", "\\n",  "[a]", "{b}",  "*alias",    "&x",    "!tag",   "a #b",
                               "%", "a\\b", "@at",   "..",   ".",   "no",   "/data/x-1", " lead", "trail ", "---"};
  for (const std::string& text : texts) {
    config.data.dir = text;
    const Config back = parse_config(to_yaml(config), "printed");
    EXPECT_EQ(back.data.dir, text);
    EXPECT_EQ(back.train.seed, config.train.seed);
  }
}

TEST(Config, LaterFilesWinAndTheCommandLineWinsOverAll) {
  const Scratch scratch;
  testing::put(scratch / "a.yaml", "optim: {lr: 0.1, warmup: 0.2}\ntrain: {epochs: 3}\n");
  testing::put(scratch / "b.yaml", "optim:\n  lr: 0.2\n");
  const std::vector<std::string> files = {(scratch / "a.yaml").string(), (scratch / "b.yaml").string()};
  Config config = load_config(files, {});
  EXPECT_DOUBLE_EQ(config.optim.lr, 0.2);
  EXPECT_DOUBLE_EQ(config.optim.warmup, 0.2);
  EXPECT_EQ(config.train.epochs, 3);
  config = load_config(files, {"optim.lr=0.3", "train.epochs=4", "optim.lr=0.4"});
  EXPECT_DOUBLE_EQ(config.optim.lr, 0.4);
  EXPECT_EQ(config.train.epochs, 4);
}

TEST(Config, OverridesAreYamlAndTextIsTakenAsItStands) {
  const Config config = with({"model.dim=[64, 128]", "model.heads=[4,8]", "model.depth=[1,2]", "optim.lr=1e-3",
                              "augment.flip=true", "data.dir=/a b/#c: d=e", "data.mean=[]", "train.output=\"q r\""});
  EXPECT_EQ(config.model.dim, (std::vector<std::int64_t>{64, 128}));
  EXPECT_EQ(config.optim.lr, 1e-3);
  EXPECT_TRUE(config.augment.flip);
  EXPECT_EQ(config.data.dir, "/a b/#c: d=e");
  EXPECT_EQ(config.train.output, "q r");
  EXPECT_EQ(with({"data.dir=/x", "data.dir="}).data.dir, "");
  EXPECT_EQ(with({"model.dim=32"}).model.dim, std::vector<std::int64_t>{32});
}

TEST(Config, AnchorsAndAliasesWork) {
  const Config config = parse_config(
      "model:\n  dim: &two [32, 64]\n  heads: [2, 4]\n  depth: [1, 1]\n"
      "  stem_channels: *two\n",
      "x.yaml");
  EXPECT_EQ(config.model.stem_channels, config.model.dim);
}

TEST(Config, WindowsLineEndsByteOrderMarkAndPipes) {
  EXPECT_EQ(parse_config("\xef\xbb\xbftrain:\r\n  epochs: 7\r\n", "x.yaml").train.epochs, 7);
  const std::string error =
      testing::message_of<ConfigError>([] { parse_config("train:\r\n  epochs: 7\r\n  sed: 1\r\n", "x.yaml"); });
  EXPECT_EQ(error.rfind("x.yaml:3: ", 0), 0u) << error;
}

TEST(Config, NumbersAreReadTheWayTheyAreWritten) {
  const auto real = [](const std::string& text) {
    double value = -1;
    bool overflow = false;
    return parse_real(text, &value, &overflow) && !overflow ? value : -1;
  };
  for (const char* text : {"0.001", "1e-3", "1E-3", "1.0e-3", ".001", "+1e-03", "1.e-3", "10e-4"})
    EXPECT_EQ(real(text), 0.001) << text;
  for (const char* text : {"",    ".",  "e5", "1e", "1e+",   "0x10",  "nan", ".nan", "inf",      ".inf",  "1_000",
                           "1,5", " 1", "1 ", "01", "010.5", "1e999", "--1", "1f",   "infinity", "1e-999"})
    EXPECT_EQ(real(text), -1) << text;
  const auto integer = [](const std::string& text) {
    bool negative = false, overflow = false;
    std::uint64_t magnitude = 0;
    return parse_integer(text, &negative, &magnitude, &overflow) && !overflow
               ? (negative ? "-" : "") + std::to_string(magnitude)
               : "no";
  };
  EXPECT_EQ(integer("0"), "0");
  EXPECT_EQ(integer("-12"), "-12");
  EXPECT_EQ(integer("+7"), "7");
  EXPECT_EQ(integer("18446744073709551615"), "18446744073709551615");
  for (const char* text : {"", "-", "+", "010", "1.0", "1.5", "0x10", "1e3", "1_000", "0o7", "18446744073709551616"})
    EXPECT_EQ(integer(text), "no") << text;
}

TEST(Config, DescriptionNamesEveryKeyWithItsValueInLinesThatFit) {
  const std::string text = "\n" + describe_keys(load_config({}, {"train.epochs=77"}));
  for (const Key& key : schema()) {
    const bool changed = key.path == "train.epochs";
    EXPECT_HAS(text, "\n" + key.path + " = " + (changed ? "77" : key.preset) +
                         (changed ? "  (default " + key.preset + ")\n" : "  (default)\n"));
  }
  EXPECT_HAS(text, "an integer in 1..1000000 (epochs); may change on resume\n");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), kDescriptionWidth) << line;
}

TEST(Config, AKeyIsExplainedAtLengthByItsPathOrByItsNameAlone) {
  const Config config = load_config({}, {"optim.lr=0.5"});
  const std::string text = explain("optim.lr", config);
  for (const char* part :
       {"optim.lr\n", "peak learning rate", "a number in [0, 1000]", "default     0.001\n", "value       0.5\n",
        "--lr VALUE\n", "learning_rate, base_lr, eta in other", "optim.lr=0.5\n"}) {
    EXPECT_HAS(text, part);
  }
  EXPECT_EQ(explain("lr", config), text);
  const std::string both = explain("name", load_config({}, {}));
  EXPECT_HAS(both, "optim.name\n");
  EXPECT_EQ(explain("optim", config), describe_keys(config, "optim."));
  const auto error = [&](const std::string& name) {
    return testing::message_of<ConfigError>([&] { explain(name, config); });
  };
  EXPECT_HAS(error("optim.lrr"), "--explain: optim.lrr: unknown key; did you mean optim.lr?");
  EXPECT_HAS(error("learning_rate"), "here it is called optim.lr");
  for (const Key& key : schema()) {
    std::istringstream lines(explain(key.path, config));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), kDescriptionWidth) << line;
  }
}

TEST(Config, MinusZeroIsZero) {
  const Config config = load_config({}, {"optim.lr=-0", "data.mean=[-0.0]", "data.std=[1]", "data.train_limit=-0"});
  for (const char* line : {"  lr: 0\n", "  mean: [0]\n", "  train_limit: 0\n"}) EXPECT_HAS(to_yaml(config), line);
}

TEST(Config, ChangedKeysAreNamedWithBothValues) {
  const Config kept = load_config({}, {});
  const auto changes = [&](const std::vector<std::string>& overrides) {
    const Config wanted = load_config({}, overrides);
    return describe_changes(differing_keys(kept, wanted), kept, wanted);
  };
  EXPECT_EQ(changes({"optim.lr=0.1"}), "optim.lr is 0.001, not 0.1");
  std::vector<std::string> many = {"model.dim=[32]", "model.mlp_ratio=3", "optim.lr=0.1",
                                   "optim.eps=1e-6", "train.seed=1",      "train.label_smoothing=0"};
  EXPECT_EQ(changes(many),
            "model.dim is [64], not [32]; model.mlp_ratio is 2, not 3; optim.lr is 0.001, not 0.1; optim.eps is "
            "1.0e-08, not 1.0e-06; train.seed is 0, not 1; train.label_smoothing is 0.1, not 0");
  for (const char* more : {"data.batch_size=3", "data.workers=3", "train.epochs=3", "train.threads=3",
                           "train.keep_last=3", "train.keep_best=3", "train.patience=3", "train.log_every=3"})
    many.emplace_back(more);
  EXPECT_EQ(changes(many).substr(changes(many).rfind(';')), "; and 2 more") << changes(many);
  EXPECT_LT(changes({"train.freeze=" + std::string(1000, 'x')}).size(), 200u);
}

TEST(Config, FlagsBelongToOneKeyEach) {
  std::set<std::string> flags;
  for (const Key& key : schema()) {
    for (const std::string& flag : key.flags) EXPECT_TRUE(flags.insert(flag).second) << flag;
  }
  for (const char* flag : {"--lr", "--epochs", "--batch-size", "--device", "--seed"}) {
    EXPECT_EQ(flags.count(flag), 1u) << flag;
  }
}

TEST(Config, TheTablesOfKeysInTheDocumentationAreCurrent) {
  const std::string text = testing::get(std::filesystem::path(AXIAL_SOURCE_DIR) / "configs/README.md");
  const std::string begin = "<!-- keys -->\n", end = "<!-- end of keys -->\n";
  const std::size_t from = text.find(begin), to = text.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos);
  EXPECT_EQ(text.substr(from + begin.size(), to - from - begin.size()), keys_as_markdown())
      << "make keys writes them anew";
}

TEST(Config, ABaseIsReadFirstAndWhatStandsOnItWins) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "common");
  testing::put(scratch / "common/root.yaml", "train:\n  epochs: 1\n  seed: 1\n  log_every: 1\n");
  testing::put(scratch / "common/middle.yaml", "base: root.yaml\ntrain:\n  epochs: 2\n  seed: 2\n");
  testing::put(scratch / "top.yaml", "train:\n  epochs: 3\nbase: common/../common/middle.yaml\n");
  const Config config = load_config({(scratch / "top.yaml").string()}, {});
  EXPECT_EQ(config.train.epochs, 3);
  EXPECT_EQ(config.train.seed, 2u);
  EXPECT_EQ(config.train.log_every, 1);
  // A base that two files share is no cycle; a later file wins over the earlier one and its base.
  testing::put(scratch / "other.yaml", "base: " + (scratch / "common/root.yaml").string() + "\n");
  EXPECT_EQ(load_config({(scratch / "top.yaml").string(), (scratch / "other.yaml").string()}, {}).train.epochs, 1);
  EXPECT_EQ(load_config({(scratch / "top.yaml").string()}, {"train.epochs=9"}).train.epochs, 9);
}

TEST(Config, ABaseThatCannotBeIsOneLineWithItsPlace) {
  const Scratch scratch;
  const auto error = [&](const std::string& text) {
    testing::put(scratch / "a.yaml", text);
    return testing::message_of<ConfigError>([&] { load_config({(scratch / "a.yaml").string()}, {}); });
  };
  const std::string a = (scratch / "a.yaml").string(), b = (scratch / "b.yaml").string();
  EXPECT_EQ(error("base: ./a.yaml\n").rfind(a + ":1: base: a configuration cannot be its own base: " + a + " -> ", 0), 0u);
  testing::put(scratch / "b.yaml", "train:\n  epochs: 1\nbase: a.yaml\n");
  EXPECT_EQ(error("base: b.yaml\n"),
            b + ":3: base: a configuration cannot be its own base: " + a + " -> " + b + " -> " + a);
  EXPECT_HAS(error("train:\n  epochs: 1\nbase: none.yaml\n"),
             a + ":3: base: " + (scratch / "none.yaml").string() + ": no such file");
  EXPECT_HAS(error("base: [b.yaml]\n"), a + ":1: base: expected the path of one configuration file");
  EXPECT_HAS(error("base:\n"), "expected the path of one configuration file");
  testing::put(scratch / "b.yaml", "train:\n  epochs: x\n");
  EXPECT_HAS(error("base: b.yaml\n"), b + ":2: train.epochs: expected");
  // What a checkpoint holds is complete: there a base would be a file of somebody's.
  EXPECT_HAS(testing::message_of<ConfigError>([] { parse_config("base: b.yaml\n", "checkpoint"); }), "base");
}

TEST(Config, WhatMayBeAFileNameIsAnOverrideOnlyInASection) {
  for (const char* text : {"data.dir=/x", "optim.lr=1", "data.no_such=1", "train.output="})
    EXPECT_TRUE(is_override(text)) << text;
  for (const char* text : {"7", "a.png", "a=b.png", "photo.x=1.png", "./data.dir=x", "dir/data.png", ""}) {
    EXPECT_FALSE(is_override(text)) << text;
  }
}

// Every "section.key" that the documentation names is a key.
TEST(Config, DocumentationNamesKeysThatThereAre) {
  std::size_t count = 0;
  for (const char* name : {"README.md", "configs/README.md", "app/README.md", "data/README.md", "CONTRIBUTING.md"}) {
    const std::string text = testing::get(std::filesystem::path(AXIAL_SOURCE_DIR) / name);
    ASSERT_FALSE(text.empty()) << name;
    const std::regex word("[`( ](model|data|augment|optim|train)\\.([a-z_]+)(?=[`=),. :;])");
    for (std::sregex_iterator match(text.begin(), text.end(), word), end; match != end; ++match, ++count) {
      const std::string path = (*match)[1].str() + "." + (*match)[2].str();
      const bool file = (*match)[2] == "log" || (*match)[2] == "h" || (*match)[2] == "cpp";  // train.log, augment.h
      EXPECT_TRUE(file || find_key(path) != nullptr) << name << ": " << path;
    }
  }
  EXPECT_GT(count, 5u);
}

}  // namespace
}  // namespace axial::app
