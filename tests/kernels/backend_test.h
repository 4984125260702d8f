// The fixture of tests that run on every backend. Instances of a backend that is not there are skipped, with the
// reason.
#pragma once

#include <gtest/gtest.h>

#include "tests/kernels/attention_harness.h"

namespace axial::kernels::testing {

inline constexpr DType kTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};

class BackendTest : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    backend_ = {GetParam(), 2};
    if (const char* reason = unavailable(backend_)) GTEST_SKIP() << reason;
  }
  Backend backend_;
};

// Instances .../cpu and .../cuda of a suite.
#define AXIAL_ON_EVERY_BACKEND(Suite)                                                       \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite, ::testing::Values(Device::kCpu, Device::kCuda), \
                           [](const auto& info) { return backend_name(info.param); })

}  // namespace axial::kernels::testing
