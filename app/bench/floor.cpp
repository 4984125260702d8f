#include "app/bench/floor.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "app/bench/statistics.h"

namespace axial::app::bench {

namespace {

constexpr int kRateRepeats = 20;
constexpr double kExponentialsPerClock = 16;

}  // namespace

void select_products(const Type& type) { at::globalContext().setAllowTF32CuBLAS(type.name == "tf32"); }

Rates measure_rates(Machine& machine, const std::vector<Type>& types) {
  Rates rates;
  const auto place = at::TensorOptions(machine.device());
  {
    const at::Tensor from = at::zeros({kCopyBytes}, place.dtype(at::kByte)), to = at::zeros_like(from);
    const auto ms = machine.times([&](std::int64_t) { to.copy_(from); }, kRateRepeats);
    rates.copy_bytes = 2.0 * static_cast<double>(kCopyBytes) / (1e-3 * summarise(ms).median);
  }
  machine.release();
  for (const Type& type : types) {
    if (rates.matrix.count(type.name) > 0) continue;
    select_products(type);
    const at::Tensor a = at::randn({kMatrixSize, kMatrixSize}, place.dtype(type.type)), b = at::randn_like(a);
    at::Tensor product = at::empty_like(a);
    const auto ms = machine.times([&](std::int64_t) { at::mm_out(product, a, b); }, kRateRepeats);
    const double n = static_cast<double>(kMatrixSize);
    rates.matrix[type.name] = 2 * n * n * n / (1e-3 * summarise(ms).median);
  }
  machine.release();
  rates.exponentials = kExponentialsPerClock * machine.traits().multiprocessors * machine.traits().clock_hz;
  return rates;
}

Floor floor_of(const Shape& s, const Type& type, const Rates& rates, Direction direction) {
  const double tokens = static_cast<double>(s.batch) * static_cast<double>(s.height) * static_cast<double>(s.width);
  const double dim = static_cast<double>(s.dim), size = static_cast<double>(c10::elementSize(type.type));
  Floor floor;
  double bytes = 0, matrix = 0, exponentials = 0;  // ms, all in all
  const auto add = [&](double length, double elements, double operations) {
    const double b = 1e3 * tokens * elements * dim * size / rates.copy_bytes;
    const double m = 1e3 * tokens * operations / rates.matrix.at(type.name);
    const double e = 1e3 * tokens * length * static_cast<double>(s.heads) / rates.exponentials;
    floor.ms += std::max({b, m, e});
    bytes += b;
    matrix += m;
    exponentials += e;
  };
  for (const std::int64_t line : {s.width, s.height}) {
    const double length = static_cast<double>(line), operations = 8 * dim * dim + 4 * length * dim;
    add(length, 2, operations);
    if (direction == Direction::kForwardBackward) add(length, 3, 3 * operations);
  }
  floor.bound = exponentials > std::max(bytes, matrix) ? "exp" : matrix > bytes ? "matrix" : "bytes";
  return floor;
}

}  // namespace axial::app::bench
