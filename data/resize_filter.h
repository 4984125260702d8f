// The weights of a resized line, and the fast way along both axes. Inside data/ only.
#pragma once

#include <cstdint>
#include <vector>

#include "data/resize.h"

namespace axial::data {

inline constexpr int kWeightBits = 22;  // of a weight: 255 times a sum of weights of 1 stays below 2^31

// What the pixels of one output line are made of: output i is the sum of weights[i * most + k] times input first[i] +
// k, k < count[i].
struct Filter {
  std::vector<std::int32_t> first, count, weights;
  std::int32_t most = 0;
};

// RGB with the processor's vectors; false where it has none that are faster, and nothing is done. To the same bytes as
// without.
bool resize_rgb_fast(const Pixels& in, const Filter& along_x, const Filter& along_y, const Planes& out);

}  // namespace axial::data
