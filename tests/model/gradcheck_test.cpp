#include "model/gradcheck.h"

#include <cmath>
#include <set>

#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

class GradcheckTest : public OnDevice {};

TEST_P(GradcheckTest, Case11_PassesAndCatchesAPlantedError) {
  const auto clean = gradcheck(device());
  std::set<std::string> methods;
  for (const GradcheckResult& r : clean) {
    EXPECT_TRUE(r.passed) << r.name << ", " << r.method << ", " << r.quantity << ": " << r.max_error << " > "
                          << r.tolerance;
    methods.insert(r.method);
  }
  EXPECT_EQ(methods,
            (std::set<std::string>{"reference", "finite differences", "finite", "float64 reference", "bias"}));

  GradcheckOptions options;
  options.planted_error = 1e-3;
  std::size_t calls = 0;
  std::set<std::string> caught;
  options.progress = [&](const GradcheckResult& r) {
    ++calls;
    if (!r.passed) caught.insert(r.method);
  };
  EXPECT_EQ(gradcheck(device(), options).size(), clean.size());
  EXPECT_EQ(calls, clean.size());
  EXPECT_EQ(caught, (std::set<std::string>{"reference", "finite differences"}));
}

AXIAL_ON_DEVICES(GradcheckTest);

TEST(Gradcheck, Case11_Float32IsRefused) {
  GradcheckOptions options;
  options.type = at::kFloat;
  EXPECT_TRUE(contains(error_of([&] { gradcheck(at::kCPU, options); }), "need float64, Float was asked for"));
}

TEST(Tolerance, NotANumberIsNeverClose) {
  const at::Tensor ref = torch::ones({3}, at::kDouble);
  EXPECT_EQ(relative_error(ref, ref), 0);
  EXPECT_EQ(relative_error(torch::tensor({1.0, 1.0, std::nan("")}), ref), INFINITY);
  EXPECT_EQ(relative_error(ref, torch::tensor({1.0, 1.0, std::nan("")})), INFINITY);
  EXPECT_EQ(relative_error(torch::ones({2}), ref), INFINITY);
  EXPECT_NEAR(relative_error(torch::full({3}, 1.01, at::kDouble), ref), 0.01, 1e-9);
  EXPECT_NEAR(relative_bias(torch::full({3}, 1.01, at::kDouble), ref), 0.01, 1e-9);
  EXPECT_LE(relative_error(torch::full({3}, 1e-16, at::kDouble), torch::zeros({3}, at::kDouble)),
            1e-12);  // the floor
}

}  // namespace
}  // namespace axial
