// What a wrong configuration is told: file, line, path, expectation, finding, and the way out.
#include <gtest/gtest.h>

#include "app/config/load.h"
#include "tests/app/run_scratch.h"

namespace axial::app {
namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::Scratch;

std::string error_of(const std::string& yaml) {
  return message_of<ConfigError>([&] { parse_config(yaml, "x.yaml"); });
}
std::string override_error(const std::string& argument) {
  return message_of<ConfigError>([&] { load_config({}, {argument}); });
}

TEST(ConfigErrors, Case21UnknownKeysNameTheNearest) {
  EXPECT_EQ(error_of("optim:\n  learning_rte: 0.1\n"),
            "x.yaml:2: optim.learning_rte: unknown key; did you mean optim.lr?");
  EXPECT_EQ(error_of("# comment\nmodel:\n  dim: 32\n  lr: 0.1\n"),
            "x.yaml:4: model.lr: unknown key; it belongs in another section: optim.lr");
  EXPECT_EQ(error_of("learning_rte: 0.1\n"), "x.yaml:1: learning_rte: unknown key; did you mean optim.lr?");
  EXPECT_EQ(error_of("lr: 0.1\n"), "x.yaml:1: lr: unknown key; write it in its section, as optim: {lr: ...}");
  EXPECT_HAS(error_of("optim: {learning_rate: 0.1}"), "here it is called optim.lr");
  EXPECT_HAS(error_of("optim: {LR: 0.1}"), "did you mean optim.lr?");
  EXPECT_HAS(error_of("data: {batchsize: 1}"), "data.batch_size");
  EXPECT_HAS(error_of("data: {bacth_size: 1}"), "did you mean data.batch_size?");
  EXPECT_HAS(error_of("optim.lr: 0.1"), "write it in its section, as optim: {lr: ...}");
  EXPECT_HAS(error_of("trian:\n  epochs: 3\n"), "x.yaml:1: trian: unknown section; there are model, data");
  EXPECT_HAS(error_of("model: {<<: {dim: 32}}"), "x.yaml:1: model.<<: unknown key");
  EXPECT_EQ(error_of("model: {\"a\\nb\\x1bc\": 1}").find("x.yaml:1: model.a b c: unknown key"), 0u);
  EXPECT_HAS(error_of("1: 2"), "x.yaml:1: 1: unknown key");
  EXPECT_EQ(override_error("optim.learning_rte=0.1"),
            "command line: optim.learning_rte: unknown key; did you mean optim.lr?");
  for (const char* wild : {"foo=1", "foo.bar=1", "model.whatever=2", "zzzzzzzz=1"}) {
    EXPECT_HAS(override_error(wild), "unknown key; axial config --keys lists all of them");
  }
  // Another section's key, or another program's name for one, must be nearer than a short word's neighbours are.
  for (const char* far : {"train.nope=1", "nope=1", "data.dpth=3", "model.rop=true"})
    EXPECT_HAS(override_error(far), "unknown key; axial config --keys lists all of them");
  EXPECT_HAS(override_error("model.dpth=3"), "did you mean model.depth?");
  EXPECT_HAS(override_error("dpth=3"), "did you mean model.depth?");
  EXPECT_HAS(override_error("data.pochs=3"), "did you mean train.epochs?");
  EXPECT_HAS(override_error("model.use_rop=true"), "did you mean model.rotary?");
  for (const char* elsewhere : {"mixup=0.5", "model.mixup=0.5", "Mixup=0.5"}) {
    const std::string path = std::string(elsewhere).substr(0, std::string(elsewhere).find('='));
    EXPECT_EQ(override_error(elsewhere), "command line: " + path + ": unknown key; write augment.mixup=0.5");
  }
  EXPECT_HAS(override_error("mixup=[oops"), "unknown key; write augment.mixup=[oops");
  EXPECT_HAS(override_error("model.dim.x=1"), "command line: model.dim.x: unknown key");
  EXPECT_HAS(override_error("model={dim: 32}"), "command line: model: expected a key, found a section");
  EXPECT_HAS(override_error("epochs"), "command line: epochs: expected key=value");
  EXPECT_HAS(override_error("configs/smoke.yaml"), "a file is given with -c FILE");
  EXPECT_HAS(override_error("=1"), "expected key=value");
  EXPECT_LT(override_error(std::string(100000, 'x') + ".y=1").size(), 200u);
}

TEST(ConfigErrors, Case22RepeatedKeysNameBothLines) {
  const std::string same = "set again; it was set on line ";
  EXPECT_EQ(error_of("optim:\n  lr: 0.1\n  warmup: 0\n  lr: 0.2\n"),
            "x.yaml:4: optim.lr: " + same + "2 already, keep one of the two");
  EXPECT_HAS(error_of("model: {dim: 32}\ntrain: {}\nmodel: {dim: 32}\n"), "x.yaml:3: model: " + same + "1");
  EXPECT_HAS(error_of("model:\n  dim: {a: 1,\n    a: 2}\n"), "x.yaml:3: model.dim.a: " + same + "2");
  EXPECT_HAS(error_of("optim:\n  lr: 0.1\n  \"lr\": 0.2\n"), "x.yaml:3: optim.lr: " + same + "2");
  EXPECT_HAS(error_of("optim:\n  betas: [{a: 1, a: 2}]\n"), same + "2");
}

TEST(ConfigErrors, Case23RangesAreNamed) {
  for (const std::string value : {"-1", "0", "4294967296", "1.5", "010", "0x10", "1e3", "99999999999999999999",
                                  "true", ".nan", ".inf", "[32]", "abc"}) {
    const std::string error = error_of("data:\n  batch_size: " + value + "\n");
    EXPECT_EQ(error.rfind("x.yaml:2: data.batch_size: expected an integer in 1..1048576, found ", 0), 0u) << error;
    EXPECT_HAS(error, value[0] == '[' ? "found a list of 1" : "found " + value);
  }
  for (const std::string value : {"1e-3", "1E-3", "1.0e-3", "0.001"})
    EXPECT_EQ(parse_config("optim: {lr: " + value + "}", "x.yaml").optim.lr, 0.001);
  for (const std::string value : {".nan", ".inf", "-.inf", "nan", "inf", "-0.1", "1e999", "0x1", "2e3", "1,5"})
    EXPECT_HAS(error_of("optim:\n  lr: " + value + "\n"),
               "x.yaml:2: optim.lr: expected a number in [0, 1000], found ");
  // an end that is not allowed itself, low and high
  EXPECT_HAS(error_of("optim: {eps: 0}"), "optim.eps: expected a number in (0, 1], found 0");
  EXPECT_EQ(parse_config("optim: {eps: 1}", "x.yaml").optim.eps, 1);
  EXPECT_HAS(error_of("optim: {momentum: 1}"), "optim.momentum: expected a number in [0, 1), found 1");
  EXPECT_EQ(parse_config("optim: {momentum: 0}", "x.yaml").optim.momentum, 0);
}

TEST(ConfigErrors, WrongTypes) {
  EXPECT_HAS(error_of("optim: {lr: \"0.1\"}"), "found the text \"0.1\"");
  EXPECT_HAS(error_of("data: {drop_last: yes}"), "expected true or false, found yes");
  EXPECT_HAS(error_of("data: {drop_last: \"true\"}"), "expected true or false, found the text \"true\"");
  EXPECT_HAS(error_of("optim:\n  lr:\n"), "x.yaml:2: optim.lr: expected a number in [0, 1000], found no value");
  EXPECT_HAS(error_of("optim:\n  lr: ~\n  eps: 1e-8\n"), "x.yaml:2: optim.lr:");
  EXPECT_HAS(error_of("optim: {lr: [1, 2]}"), "found a list of 2");
  EXPECT_HAS(error_of("optim: {lr: {a: 1}}"), "found a map");
  for (const char* device : {"cuda:", "cuda:01", "cuda:-1", "cuda:1x", "cuda:999", "CUDA"})
    EXPECT_HAS(error_of("train: {device: '" + std::string(device) + "'}"), "expected auto, cpu, cuda or cuda:N");
  EXPECT_HAS(error_of("train: {output: ''}"), "expected a folder");
  EXPECT_HAS(error_of("train: {seed: -1}"), "expected an integer in 0..18446744073709551615, found -1");
  EXPECT_HAS(error_of("train: {seed: 18446744073709551616}"), "found 18446744073709551616");
  EXPECT_HAS(error_of("model: {dim: []}"), "found 0 entries");
  EXPECT_HAS(error_of("model: {dim: [64, 1.5]}"), "found 1.5 as entry 2");
  EXPECT_HAS(error_of("model: {dim: [64, null]}"), "found no value as entry 2");
  EXPECT_HAS(error_of("model: {dim: [[64]]}"), "found a list of 1 as entry 1");
  EXPECT_HAS(override_error("model.dim=64,128"), "(a list is written [64,128])");
  EXPECT_HAS(error_of("optim: {betas: 0.9}"), "expected a list of 2 numbers, each in [0, 1), found 1 entry");
  EXPECT_HAS(error_of("optim: {betas: [0.9, 1]}"), "found 1 as entry 2");
  EXPECT_HAS(error_of("data: {dir: \"a\\0b\"}"), "control characters");
  EXPECT_HAS(error_of("data: {dir: \"a\\x1bb\"}"), "control characters");
  EXPECT_HAS(override_error("data.dir=a\xff"), "not in UTF-8");
  EXPECT_HAS(override_error("optim.lr="), "command line: optim.lr: expected a number in [0, 1000], found no value");
  EXPECT_HAS(error_of("optim: {lr: !!float 1}"), "tags such as");
  EXPECT_LT(error_of("optim: {name: " + std::string(100000, 'x') + "}").size(), 300u);
}

// Where nothing stands it is not as if nothing had been asked.
TEST(ConfigErrors, EmptyValuesAreWrongValues) {
  EXPECT_EQ(override_error("train.precision="),
            "command line: train.precision: expected one of float32, tf32, bfloat16, float16, found nothing");
  EXPECT_EQ(override_error("train.output="), "command line: train.output: expected a folder, found nothing");
  EXPECT_HAS(override_error("train.device="), "expected auto, cpu, cuda or cuda:N, found nothing");
  EXPECT_EQ(load_config({}, {"data.dir="}).data.dir, "");
}

TEST(ConfigErrors, WrongValuesNameTheNearest) {
  EXPECT_EQ(error_of("train:\n  precision: bf16\n"),
            "x.yaml:2: train.precision: expected one of float32, tf32, bfloat16, float16, found bf16; did you mean "
            "bfloat16?");
  EXPECT_HAS(error_of("optim: {name: adam}"), "expected one of sgd, adamw, muon, found adam; did you mean adamw?");
  EXPECT_HAS(error_of("train: {device: gpu}"), "expected auto, cpu, cuda or cuda:N, found gpu; did you mean cuda?");
  for (const auto& [written, meant] :
       std::vector<std::pair<std::string, std::string>>{{"train.device=gpu:1", "cuda:1"},
                                                        {"train.device=cuda2", "cuda:2"},
                                                        {"train.device=cuda:03", "cuda:3"},
                                                        {"train.device=CPU", "cpu"},
                                                        {"train.precision=BFloat16", "bfloat16"},
                                                        {"train.precision=half", "float16"},
                                                        {"data.dataset=fashion-mnist", "fashion_mnist"},
                                                        {"data.dataset=cifar-10", "cifar10"},
                                                        {"optim.schedule=cosin", "cosine"},
                                                        {"train.eval_metric=accuracy", "top1"},
                                                        {"train.tensorboard=True", "true"},
                                                        {"train.tensorboard=off", "false"}}) {
    EXPECT_HAS(override_error(written), "; did you mean " + meant + "?");
  }
  for (const char* far : {"optim.name=lamb", "data.dataset=imagenet", "train.tensorboard=maybe", "train.output="}) {
    EXPECT_EQ(override_error(far).find("did you mean"), std::string::npos) << override_error(far);
  }
}

// The YAML library takes all that follows such a mark for the value.
TEST(ConfigErrors, QuotationMarksAreClosed) {
  for (const std::string mark : {"\"", "'"}) {
    EXPECT_EQ(error_of("data:\n  dir: " + mark + "abc\n  batch_size: 3\n"),
              "x.yaml:2: a quotation mark is not closed");
    EXPECT_EQ(error_of("data:\n  batch_size: 3\n  dir: " + mark), "x.yaml:3: a quotation mark is not closed");
    EXPECT_EQ(error_of("data: {" + mark + "dir: a}\n"), "x.yaml:1: a quotation mark is not closed");
    EXPECT_EQ(error_of("\xef\xbb\xbf"
                       "data:\n  dir: " +
                       mark + "abc\n"),
              "x.yaml:2: a quotation mark is not closed");
    EXPECT_EQ(override_error("data.dir=" + mark + "abc"),
              "command line: data.dir: expected text, found " + mark + "abc; a quotation mark is not closed");
    EXPECT_HAS(override_error("data.dir=" + mark), "a quotation mark is not closed");
    EXPECT_HAS(override_error("model.dim=[1, " + mark + "2]"), "a quotation mark is not closed");
    for (const std::string& good : {mark + "a" + mark, mark + "a\n b" + mark, mark + mark})
      EXPECT_NO_THROW(parse_config("data: {dir: " + good + "}\n", "x.yaml")) << good;
    EXPECT_NO_THROW(
        parse_config("\xef\xbb\xbf"
                     "data:\r\n  dir: " +
                         mark + "a" + mark + "\r\n",
                     "x.yaml"));
  }
  EXPECT_EQ(parse_config("data: {dir: 'it''s'}", "x.yaml").data.dir, "it's");
  EXPECT_EQ(parse_config("data: {dir: \"a\\\"b\\\\\"}", "x.yaml").data.dir, "a\"b\\");
  EXPECT_EQ(parse_config("data: {dir: it's}", "x.yaml").data.dir, "it's");
  EXPECT_EQ(parse_config("data:\n  dir: |-\n    'a\n", "x.yaml").data.dir, "'a");
}

TEST(ConfigErrors, NamesInListsAreNotEmpty) {
  for (const char* text : {",", "stem,", ",stem", "stem,,head", " , ", " "}) {
    EXPECT_EQ(
        override_error(std::string("train.freeze=") + text),
        std::string("command line: train.freeze: expected names with commas between, none of them empty, found ") +
            text);
  }
  for (const char* text : {"", "stem", "stem, head.*"})
    EXPECT_EQ(load_config({}, {std::string("train.freeze=") + text}).train.freeze, text);
}

// A value that is no YAML is a wrong value of its key.
TEST(ConfigErrors, BrokenValuesOnTheCommandLineNameKeyExpectationAndFinding) {
  for (const std::string value :
       {"[true", "{a", "true]", "\"true", "[true, {[a]: b}]", "a: b: c", "{a: 1, a: 2}", "*a"}) {
    const std::string error = override_error("model.rotary=" + value);
    EXPECT_EQ(error.rfind("command line: model.rotary: expected true or false, found " + value, 0), 0u) << error;
  }
  EXPECT_EQ(override_error("model.rotary=[true"),
            "command line: model.rotary: expected true or false, found [true (is a bracket not closed?)");
  EXPECT_EQ(override_error("model.dim=[64"),
            "command line: model.dim: expected a list of 1 to 16 integers, each in "
            "1..65536, found [64 (is a bracket not closed?)");
  EXPECT_EQ(override_error("model.dim=[1]]").find("bracket not closed"), std::string::npos);
  EXPECT_LT(override_error("model.dim=[" + std::string(100000, '1')).size(), 300u);
}

// What training would not see, or see several times as large, is not taken.
TEST(ConfigErrors, NumbersTooSmallForTheArithmeticAreRefused) {
  EXPECT_EQ(
      error_of("model:\n  layer_scale: 1e-46\n"),
      "x.yaml:2: model.layer_scale: is less than float32 holds: expected 0, or at least 1.2e-38, found 1.0e-46");
  EXPECT_HAS(error_of("optim: {eps: 1e-40}"),
             "optim.eps: is less than float32 holds: expected at least 1.2e-38, found ");
  EXPECT_HAS(error_of("optim: {clip_norm: 1e-40}"),
             "optim.clip_norm: is less than float32 holds: expected 0, or at ");
  EXPECT_EQ(parse_config("model: {layer_scale: 1.2e-38}", "x.yaml").model.layer_scale, 1.2e-38);
  for (const std::string key : {"attention_dropout", "projection_dropout", "drop_path", "head_dropout"}) {
    const auto error = [&](const std::string& value) { return error_of("model:\n  " + key + ": " + value + "\n"); };
    for (const char* value : {"0.001", "0.0039", "0.999"}) {
      EXPECT_EQ(
          error(value).rfind("x.yaml:2: model." + key + ": is drawn in steps of 1/256: expected 0, or 1/256", 0), 0u)
          << error(value);
    }
    EXPECT_EQ(error("0.001"), "x.yaml:2: model." + key +
                                  ": is drawn in steps of 1/256: expected 0, or 1/256 "
                                  "(0.00390625) to 255/256 (0.99609375), found 0.001");
    EXPECT_HAS(error("1"), "expected a number in [0, 1), found 1");
    for (const char* value : {"0", "0.00390625", "0.995"})
      EXPECT_NO_THROW(parse_config("model: {" + key + ": " + value + "}", ""));
  }
}

TEST(ConfigErrors, NormalisedPixelsAreNumbersOfTheArithmetic) {
  EXPECT_EQ(
      error_of("data:\n  mean: [0.5]\n  std: [1e-45]\n"),
      "x.yaml:3: data.std: entry 1 makes pixels of numbers that float32 does not hold: expected at least 1.2e-38; "
      "data.std = [1.0e-45] (x.yaml:3), data.mean = [0.5] (x.yaml:2), train.precision = float32 (default)");
  EXPECT_HAS(override_error("data.std=[1, 1e-300]"), "expected as many entries in both");
  const auto refused = [](const std::string& mean, const std::string& std, const std::string& precision) {
    return message_of<ConfigError>([&] {
      load_config({}, {"data.mean=" + mean, "data.std=" + std, "train.precision=" + precision});
    });
  };
  EXPECT_HAS(refused("[0, 1000]", "[1, 1e-36]", "bfloat16"),
             "entry 2 makes pixels of numbers that bfloat16 does not");
  EXPECT_HAS(refused("0.5", "1e-6", "float16"),
             "entry 1 makes pixels of numbers that float16 does not hold: expected at");
  for (const char* std : {"1.3e-38", "1e-5", "0.3"}) {
    EXPECT_NO_THROW(load_config({}, {"data.mean=0.5", std::string("data.std=") + std}));
  }
  EXPECT_NO_THROW(load_config({}, {"data.mean=0.5", "data.std=1e-5", "train.precision=float16"}));
}

TEST(ConfigErrors, WrongDocuments) {
  EXPECT_HAS(error_of(""), "x.yaml: expected sections (model, data, ...), found an empty file");
  EXPECT_HAS(error_of("# nothing\n"), "found an empty file");
  EXPECT_HAS(error_of("---\n"), "found an empty file");
  EXPECT_HAS(error_of("- a\n- b\n"), "found a list");
  EXPECT_HAS(error_of("hello\n"), "found a single value");
  EXPECT_HAS(error_of("model:\n"), "x.yaml:1: model: expected a section with keys, found nothing");
  EXPECT_HAS(error_of("model: 3\n"), "x.yaml:1: model: expected a section with keys, found a value");
  EXPECT_HAS(error_of("model: {dim: 32}\n---\nmodel: {dim: 64}\n"), "more than one YAML document");
  EXPECT_HAS(error_of("{model: {dim: 32}} trailing"), "x.yaml");
  EXPECT_HAS(error_of("model: &m\n  dim: *m\n"), "x.yaml:2: an alias (*) stands inside of what it names");
  EXPECT_HAS(error_of("model: {dim: *none}\n"), "x.yaml:1: not valid YAML");
  EXPECT_HAS(error_of("model: {dim: [32\n"), "not valid YAML");
  EXPECT_HAS(error_of("model:\n\tdim: 32\n"), "x.yaml:2: not valid YAML");
  EXPECT_HAS(error_of("? [a]\n: b\n"), "x.yaml:1: a key must be a single word");
  EXPECT_HAS(error_of("~: 1\n"), "a key must be a single word");
  // nesting without end: an error, not the end of the stack
  EXPECT_HAS(error_of(std::string(100000, '[')), "x.yaml:1: ");
  EXPECT_HAS(error_of("optim: {lr: " + std::string(5000, '{')), "x.yaml:1: ");
  std::string list;
  for (int i = 0; i < 100000; ++i) list += "- ";
  EXPECT_HAS(error_of(list + "1"), "x.yaml:1: not valid YAML for a configuration: nested too deep");
}

TEST(ConfigErrors, WrongFiles) {
  const Scratch scratch;
  const auto load = [&](const fs::path& path) {
    return message_of<ConfigError>([&] { load_config({path.string()}, {}); });
  };
  EXPECT_EQ(load(scratch / "none.yaml"), (scratch / "none.yaml").string() + ": no such file");
  testing::put(scratch / "some.yaml", "train: {epochs: 1}\n");
  EXPECT_EQ(load(scratch / "some"),
            (scratch / "some").string() + ": no such file; there is " + (scratch / "some.yaml").string());
  EXPECT_HAS(load(scratch.path()), scratch.path().string() + ": is a folder, expected a configuration file");
  testing::put(scratch / "big.yaml", std::string(2 << 20, '#'));
  EXPECT_HAS(load(scratch / "big.yaml"), "found more than 1 MiB");
  testing::put(scratch / "binary.yaml", std::string("a: \0b", 5));
  EXPECT_HAS(load(scratch / "binary.yaml"), "found binary data");
  testing::put(scratch / "secret.yaml", "train: {epochs: 1}\n");
  fs::permissions(scratch / "secret.yaml", fs::perms::none);
  const std::string error = testing::in_child([&] {
    testing::drop_privileges();
    load_config({(scratch / "secret.yaml").string()}, {});
    return std::string("loaded");
  });
  EXPECT_HAS(error, "secret.yaml: cannot be read: Permission denied");
}

TEST(ConfigErrors, KeysThatMustFitEachOther) {
  EXPECT_EQ(error_of("model:\n  heads: 3\n"),
            "x.yaml:2: model.heads: stage 1: expected a divisor of dim 64, found 3 heads; "
            "model.heads = [3] (x.yaml:2), model.dim = [64] (default)");
  EXPECT_HAS(error_of("model:\n  dim: 30\n"), "x.yaml:2: model.dim: stage 1: expected a divisor of dim 30, found 4");
  EXPECT_HAS(error_of("model: {dim: [64, 128]}"),
             "expected one entry per stage in each of these lists, found 2, 1 and 1");
  EXPECT_HAS(error_of("model: {dim: 1024, heads: 2}"), "expected at most 256 channels a head, found 512");
  EXPECT_EQ(
      error_of("model:\n  rotary: true\n  dim: 60\n"),
      "x.yaml:2: model.rotary: stage 1: turns pairs of channels, expected an even number of channels a head, found "
      "15; model.rotary = true (x.yaml:2), model.heads = [4] (default), model.dim = [60] (x.yaml:3)");
  EXPECT_HAS(error_of("model: {rotary_base: 1}"), "model.rotary_base: expected a number in (1, 1.0e+09]");
  EXPECT_HAS(error_of("data:\n  mean: [0.5]\n"),
             "x.yaml:2: data.mean: expected as many entries in both, found 1 and 0");
  EXPECT_HAS(error_of("data: {dataset: synthetic, mean: [0.5, 0.5], std: [1, 1]}"),
             "expected one entry per channel (1)");
  EXPECT_HAS(error_of("data: {dataset: image_folder, mean: 0.5, std: 1}"),
             "expected one entry per channel (3), found 1");
  EXPECT_HAS(error_of("data: {folder_channels: 2}"), "expected 1 (gray) or 3 (colour), found 2");
  EXPECT_HAS(error_of("model:\n  mlp_ratio: 1e-9\n"), "x.yaml:2: model.mlp_ratio: stage 1: the hidden width");
  EXPECT_EQ(error_of("augment: {erase_area: [0.3, 0.1]}"),
            "x.yaml:1: augment.erase_area: expected the least value first and the greatest second, found [0.3, 0.1]");
  EXPECT_EQ(override_error("data.dataset=image_list"),
            "command line: data.train_list: expected a CSV file of path,label for data.dataset = image_list, found "
            "\"\"");
  EXPECT_HAS(error_of("optim: {name: sgd, nesterov: true, momentum: 0}"), "needs a momentum above 0");
  EXPECT_HAS(override_error("model.heads=5"), "command line: model.heads: stage 1");
  EXPECT_EQ(parse_config("optim: {nesterov: true, momentum: 0}", "x.yaml").optim.name, "adamw");
}

}  // namespace
}  // namespace axial::app
