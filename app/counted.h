// Counted nouns: "1 epoch", "2 epochs", "2 batches".
#pragma once

#include <concepts>
#include <string>

namespace axial::app {

inline std::string counted(std::integral auto count, const std::string& noun) {
  const auto ends = [&](const char* tail) { return noun.ends_with(tail); };
  const char* const plural = count == 1 ? "" : ends("tch") || ends("s") || ends("x") ? "es" : "s";
  return std::to_string(count) + " " + noun + plural;
}

}  // namespace axial::app
