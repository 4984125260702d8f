#include "app/bench/cases.h"

#include <charconv>

#include "app/config/load.h"
#include "app/config/suggest.h"
#include "kernels/kernels.h"

namespace axial::app::bench {

namespace {

const std::vector<Shape>& named_shapes() {
  static const std::vector<Shape> shapes = {
      {"seed", 4, 32, 32, 64, 4},        {"train64", 512, 32, 32, 64, 4},   {"512x28x28", 512, 28, 28, 64, 4},
      {"512x14x14", 512, 14, 14, 64, 4}, {"train128", 256, 32, 32, 128, 4}, {"mid", 64, 64, 64, 128, 4},
      {"long", 16, 128, 128, 128, 8},
  };
  return shapes;
}

constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

[[noreturn]] void refuse(const std::string& option, const std::string& found, const std::string& expected) {
  throw ConfigError("command line: --" + option + ": " + found + ": expected " + expected);
}

std::vector<std::string> split(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  for (const std::string& argument : arguments) {
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = argument.find(',', begin);
      words.push_back(argument.substr(begin, end == std::string::npos ? end : end - begin));
    }
  }
  return words;
}

bool parse_positive(const std::string& word, std::int64_t& number) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() && number >= 1;
}

Shape spelt_out(const std::string& name, const std::int64_t (&n)[5]) {
  std::int64_t elements = 1;
  for (int i = 0; i < 4; ++i) {
    if (n[i] > kMostElements / elements) refuse("shapes", name, "at most 2^40 elements B*H*W*D");
    elements *= n[i];
  }
  if (n[3] % n[4] != 0) refuse("shapes", name, "heads (" + std::to_string(n[4]) + ") that divide D");
  if (n[3] / n[4] > kernels::kMaxHeadDim) {
    refuse("shapes", name, "at most " + std::to_string(kernels::kMaxHeadDim) + " channels a head (D / heads)");
  }
  return {name, n[0], n[1], n[2], n[3], n[4]};
}

}  // namespace

std::vector<std::string> default_shapes(bool cuda) {
  if (!cuda) return {"64,7,7,64,4", "64,28,28,64,4"};
  std::vector<std::string> names;
  for (const Shape& shape : named_shapes()) names.push_back(shape.name);
  return names;
}

std::vector<std::string> default_types(bool cuda) { return {cuda ? "bfloat16" : "float32"}; }

std::vector<Shape> parse_shapes(const std::vector<std::string>& arguments) {
  std::string expected;
  for (const Shape& shape : named_shapes()) expected += shape.name + ", ";
  expected += "or B,H,W,D,heads as positive integers";

  const std::vector<std::string> words = split(arguments);
  std::vector<Shape> shapes;
  for (std::size_t at = 0; at < words.size();) {
    bool found = false;
    for (const Shape& shape : named_shapes()) {
      if (shape.name != words[at]) continue;
      shapes.push_back(shape);
      found = true;
    }
    if (found) {
      ++at;
      continue;
    }
    std::int64_t n[5];
    std::string name;
    for (std::size_t i = 0; i < 5; ++i, ++at) {
      if (at == words.size()) refuse("shapes", name, expected);
      name += (i == 0 ? "" : ",") + words[at];
      if (!parse_positive(words[at], n[i])) refuse("shapes", name.empty() ? "''" : name, expected);
    }
    shapes.push_back(spelt_out(name, n));
  }
  return shapes;
}

std::vector<Type> parse_types(const std::vector<std::string>& arguments, bool cuda) {
  std::vector<Type> types;
  for (const std::string& word : split(arguments)) {
    if (word == "bfloat16") {
      types.push_back({word, at::kBFloat16});
    } else if (word == "float16") {
      types.push_back({word, at::kHalf});
    } else if (word == "float32" || (word == "tf32" && cuda)) {
      types.push_back({word, at::kFloat});
    } else {
      refuse("dtype", word.empty() ? "''" : word,
             (cuda ? "bfloat16, float16, tf32 or float32" : "bfloat16, float16 or float32 (tf32 is the GPU's)") +
                 meant_value(word, {"bfloat16", "float16", "float32"}));
    }
  }
  return types;
}

}  // namespace axial::app::bench
