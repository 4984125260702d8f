// How fast the layer could be on a GPU: what it must move, multiply and exponentiate, over the rates of the card.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "app/bench/cases.h"
#include "app/bench/machine.h"

namespace axial::app::bench {

struct Rates {
  double copy_bytes = 0;                 // read and written a second, measured: a large device copy
  std::map<std::string, double> matrix;  // operations a second by type, measured: a large library product
  double exponentials = 0;               // a second, stated: 16 a clock and multiprocessor
};

inline constexpr std::int64_t kCopyBytes = std::int64_t{1} << 30;  // of the copied buffer
inline constexpr std::int64_t kMatrixSize = 8192;                  // m = n = k of the product

Rates measure_rates(Machine& machine, const std::vector<Type>& types);

// libtorch may form float32 products in TF32 from here on, or not.
void select_products(const Type& type);

struct Floor {
  double ms = 0;
  std::string bound;  // what the most of it is made of: bytes, matrix or exp
};

enum class Direction { kForward, kForwardBackward };

// Both passes. A token and pass, D channels, lines of L: the forward moves 2 D elements (x, y), multiplies and adds
// 8 D^2 + 4 L D times, and takes L * heads exponentials; the backward moves 3 D (x, dy, dx), has three times the
// operations (it computes the forward again) and as many exponentials. Each direction of each pass takes at least the
// longest of its three times.
Floor floor_of(const Shape& shape, const Type& type, const Rates& rates, Direction direction);

}  // namespace axial::app::bench
