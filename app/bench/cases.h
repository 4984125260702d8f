// What `axial bench` runs: shapes and types, by name or spelt out on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace axial::app::bench {

struct Shape {
  std::string name;  // "train64", or the five numbers as given
  std::int64_t batch = 0, height = 0, width = 0, dim = 0, heads = 0;
};

struct Type {
  std::string name;     // bfloat16, float16, float32 or tf32: float32 whose products libtorch may form in TF32
  at::ScalarType type;  // of the tokens; parameters are float32 always
};

// The shapes and the type that a run without arguments takes: the ones that BENCHMARKS.md keeps, or a few that two
// cores finish in seconds.
std::vector<std::string> default_shapes(bool cuda);
std::vector<std::string> default_types(bool cuda);

// Names and B,H,W,D,heads in any order, each argument with any number of them between commas. Throws ConfigError.
std::vector<Shape> parse_shapes(const std::vector<std::string>& arguments);
std::vector<Type> parse_types(const std::vector<std::string>& arguments, bool cuda);

}  // namespace axial::app::bench
