// Contiguous tensors between sentinels, for kernels that take no strides.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/kernels/attention_case.h"
#include "tests/kernels/device_buffers.h"
#include "tests/kernels/tolerance.h"

namespace axial::kernels::testing {

using Values = std::vector<double>;

inline DType accumulator(DType dtype) { return dtype == DType::kFloat64 ? dtype : DType::kFloat32; }

inline Tolerance allowed(DType dtype) { return tolerance(dtype, Math::kStrict, Device::kCuda, Quantity::kOutput); }

// `count` values between margins, NaN until they are set.
struct Array {
  Case c;
  Operand operand;

  Array(DType dtype, std::int64_t count) {
    c.outer[0] = count;
    c.length = c.heads = c.head_dim = 1;
    c.dtype = dtype;
    operand = make_operands(c, Layout::kContiguous, 1)[0];
  }
  // Normal numbers, rounded to the type.
  Values randomise(std::mt19937_64& generator, double deviation = 1, double mean = 0) {
    std::normal_distribution<double> normal(mean, deviation);
    Values values(static_cast<std::size_t>(c.outer[0]));
    for (double& v : values) v = normal(generator);
    return set(values);
  }
  Values set(const Values& values) {
    Values rounded;
    set_values(c, operand, values, rounded);
    return rounded;
  }
  void* on(DeviceBuffers& device) const {
    return static_cast<char*>(device.put(operand.buffer)) +
           operand.offset * static_cast<std::int64_t>(element_size(c.dtype));
  }
  Values values() const { return dense(c, operand); }
  std::string sentinels() const { return check_sentinels(c, "tensor", {&operand}); }
};

inline std::shared_ptr<Bytes> poisoned(std::size_t bytes) { return std::make_shared<Bytes>(bytes, kSentinel); }

}  // namespace axial::kernels::testing
