// 16-bit conversions: all bit patterns, and rounding at the ties. The vector conversions inside the CPU kernels are
// held against these scalar ones in cpu_test.
#include "kernels/cpu/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace axial::kernels {
namespace {

TEST(Convert, EveryPatternSurvivesARoundTrip) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const std::uint16_t bits = static_cast<std::uint16_t>(pattern);
    if (const float value = bfloat16_to_float(bits); std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(value))));
    } else {
      EXPECT_EQ(float_to_bfloat16(value), bits);
    }
    if (const float value = float16_to_float(bits); std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float16_to_float(float_to_float16(value))));
    } else {
      EXPECT_EQ(float_to_float16(value), bits);
    }
  }
}

TEST(Convert, KnownValues) {
  EXPECT_EQ(float16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(float16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(float16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(float16_to_float(0x8400), -0x1p-14f);
  EXPECT_EQ(float16_to_float(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(bfloat16_to_float(0x3f80), 1.0f);
  EXPECT_EQ(float_to_float16(1e6f), 0x7c00);
  EXPECT_EQ(float_to_float16(-1e-10f), 0x8000);
  EXPECT_EQ(float_to_bfloat16(3.4e38f), 0x7f80);
}

// Between neighbours: below the middle down, above up, the middle to the even one. Subnormals and the step to
// infinity included.
TEST(Convert, RoundsToNearestEven) {
  for (std::uint32_t pattern = 0; pattern < 0x7c00; ++pattern) {
    const std::uint16_t low = static_cast<std::uint16_t>(pattern), high = static_cast<std::uint16_t>(pattern + 1);
    const float a = float16_to_float(low), b = high == 0x7c00 ? 65536.0f : float16_to_float(high),
                middle = (a + b) / 2;
    EXPECT_EQ(float_to_float16(middle), pattern % 2 == 0 ? low : high);
    EXPECT_EQ(float_to_float16(std::nextafter(middle, 0.0f)), low);
    EXPECT_EQ(float_to_float16(std::nextafter(middle, 1e9f)), high);
  }
  for (std::uint32_t pattern = 0; pattern < 0x7f7f; ++pattern) {
    const std::uint16_t low = static_cast<std::uint16_t>(pattern), high = static_cast<std::uint16_t>(pattern + 1);
    const float middle = std::bit_cast<float>((pattern << 16) | 0x8000u);
    EXPECT_EQ(float_to_bfloat16(middle), pattern % 2 == 0 ? low : high);
    EXPECT_EQ(float_to_bfloat16(std::nextafter(middle, 0.0f)), low);
    EXPECT_EQ(float_to_bfloat16(std::nextafter(middle, std::numeric_limits<float>::infinity())), high);
  }
}

}  // namespace
}  // namespace axial::kernels
