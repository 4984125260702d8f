// What a training step does around the network (kernels/loss.h, kernels/update.h), on both backends: against plain
// float64, and CUDA's verdicts bit for bit against the CPU's.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "kernels/loss.h"
#include "kernels/update.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_harness.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/device_buffers.h"

namespace axial::kernels::testing {
namespace {

template <class T>
std::shared_ptr<Bytes> bytes_of(const std::vector<T>& values) {
  auto bytes = std::make_shared<Bytes>(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes->data(), values.data(), bytes->size());
  return bytes;
}
template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class StepKernels : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (const char* reason = unavailable({GetParam(), 1})) GTEST_SKIP() << reason;
  }
  bool cuda() const { return GetParam() == Device::kCuda; }
};

struct LossCase {
  std::int64_t samples, classes;
  DType dtype = DType::kFloat32;
  bool pairs = false;
  double smoothing = 0, gain = 2;
};

TEST_P(StepKernels, LossMatchesFloat64) {
  std::vector<LossCase> cases;
  for (const DType dtype : kTypes) {
    for (const std::int64_t classes : {1, 2, 10, 33, 1000}) {
      for (const bool pairs : {false, true}) {
        cases.push_back({37, classes, dtype, pairs, pairs ? 0.1 : 0.0});
        cases.push_back({600, classes, dtype, pairs, 0.1, dtype == DType::kFloat16 ? 30.0 : 200.0});
      }
    }
  }
  for (const LossCase& c : cases) {
    SCOPED_TRACE(::testing::Message() << name(c.dtype) << " " << c.samples << " x " << c.classes << " pairs " << c.pairs
                                      << " smoothing " << c.smoothing << " gain " << c.gain);
    std::mt19937_64 random(static_cast<std::uint64_t>(c.samples * 1000 + c.classes));
    std::normal_distribution<double> normal(0, c.gain);
    const auto count = static_cast<std::size_t>(c.samples * c.classes), n = static_cast<std::size_t>(c.samples);
    Case tensor;
    tensor.outer[0] = c.samples;
    tensor.length = 1;
    tensor.head_dim = c.classes;
    tensor.dtype = c.dtype;
    std::vector<Operand> operands = make_operands(tensor, Layout::kContiguous, 2);
    std::vector<double> z(count), given;
    for (double& v : z) v = normal(random);
    set_values(tensor, operands[0], z, given);
    std::vector<std::int64_t> labels(n), partners(n);
    std::vector<float> weights(n);
    for (std::size_t i = 0; i < n; ++i) {
      labels[i] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(c.classes));
      partners[i] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(c.classes));
      weights[i] = static_cast<float>(random() % 1000) / 1000;
    }
    const float scale = 0.125f;

    DeviceBuffers device(GetParam());
    const auto address = [&](const Operand& o) {
      return static_cast<char*>(device.put(o.buffer)) + o.offset * static_cast<std::int64_t>(element_size(c.dtype));
    };
    LossProblem problem;
    problem.samples = c.samples;
    problem.classes = c.classes;
    problem.dtype = c.dtype;
    problem.logits = address(operands[0]);
    problem.labels = static_cast<const std::int64_t*>(device.put(bytes_of(labels)));
    if (c.pairs) {
      problem.partners = static_cast<const std::int64_t*>(device.put(bytes_of(partners)));
      problem.weights = static_cast<const float*>(device.put(bytes_of(weights)));
    }
    problem.smoothing = c.smoothing;
    problem.factor = 0.5;
    problem.scale = static_cast<const float*>(device.put(bytes_of(std::vector<float>{scale})));
    const auto sums_bytes = std::make_shared<Bytes>(3 * sizeof(double), kSentinel);
    LossOutput output;
    output.sums = static_cast<double*>(device.put(sums_bytes));
    output.d_logits = address(operands[1]);
    output.per_sample = static_cast<double*>(device.put(std::make_shared<Bytes>(2 * n * sizeof(double), kSentinel)));
    const Status status = cuda() ? cuda::softmax_loss(problem, output, nullptr) : cpu::softmax_loss(problem, output);
    ASSERT_TRUE(status.ok()) << status.message;
    ASSERT_EQ(device.fetch(), "");

    double loss = 0, hits = 0;
    std::vector<double> gradient(count);
    for (std::size_t i = 0; i < n; ++i) {
      const double* row = &given[i * static_cast<std::size_t>(c.classes)];
      std::size_t best = 0;
      double sum = 0;
      const auto classes = static_cast<std::size_t>(c.classes);
      for (std::size_t k = 1; k < classes; ++k) best = row[k] > row[best] ? k : best;
      for (std::size_t k = 0; k < classes; ++k) sum += std::exp(row[k] - row[best]);
      const double w = c.pairs ? static_cast<double>(weights[i]) : 1;
      const auto label = static_cast<std::size_t>(labels[i]), partner = static_cast<std::size_t>(partners[i]);
      for (std::size_t k = 0; k < classes; ++k) {
        double target = c.smoothing / static_cast<double>(c.classes);
        if (k == label) target += (1 - c.smoothing) * w;
        if (c.pairs && k == partner) target += (1 - c.smoothing) * (1 - w);
        loss -= target * (row[k] - row[best] - std::log(sum));
        gradient[i * classes + k] = 0.5 * static_cast<double>(scale) * (std::exp(row[k] - row[best]) / sum - target);
      }
      hits += best == (w >= 0.5 ? label : partner) ? 1 : 0;
    }
    const std::vector<double> sums = values_of<double>(*sums_bytes);
    EXPECT_NEAR(sums[0], loss, (c.dtype == DType::kFloat64 ? 1e-12 : 1e-5) * std::max(loss, 1.0));
    EXPECT_EQ(sums[1], hits);
    EXPECT_EQ(sums[2], static_cast<double>(c.samples));
    Tolerance allowed = tolerance(c.dtype, Math::kStrict, GetParam(), Quantity::kOutput);
    allowed.absolute = 1e-6;
    if (c.dtype == DType::kBFloat16 || c.dtype == DType::kFloat16) allowed.bias = 1;
    EXPECT_EQ(compare("d logits", dense(tensor, operands[1]), gradient, allowed), "");
    for (const Operand& o : operands) EXPECT_EQ(check_sentinels(tensor, "logits", {&o}), "");
  }
}

// A label outside, a NaN among the logits: nothing that looks like a number comes of it. Nothing to do is no error.
TEST_P(StepKernels, LossOfWrongInputsIsNan) {
  const auto run = [&](const std::vector<float>& logits, const std::vector<std::int64_t>& labels,
                       std::int64_t classes) {
    DeviceBuffers device(GetParam());
    LossProblem problem;
    problem.samples = static_cast<std::int64_t>(labels.size());
    problem.classes = classes;
    problem.logits = device.put(bytes_of(logits));
    problem.labels = static_cast<const std::int64_t*>(device.put(bytes_of(labels)));
    const auto sums = std::make_shared<Bytes>(3 * sizeof(double), kSentinel);
    LossOutput output;
    output.sums = static_cast<double*>(device.put(sums));
    output.per_sample = static_cast<double*>(
        device.put(std::make_shared<Bytes>(2 * labels.size() * sizeof(double) + sizeof(double), kSentinel)));
    const Status status = cuda() ? cuda::softmax_loss(problem, output, nullptr) : cpu::softmax_loss(problem, output);
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(device.fetch(), "");
    return values_of<double>(*sums);
  };
  EXPECT_TRUE(std::isnan(run({1, 2, 3}, {3}, 3)[0]));
  EXPECT_TRUE(std::isnan(run({1, 2, 3}, {-1}, 3)[0]));
  EXPECT_TRUE(std::isnan(run({1, std::numeric_limits<float>::quiet_NaN(), 3}, {2}, 3)[0]));
  EXPECT_EQ(run({5, 5, 5, 5}, {0, 1}, 2)[1], 1) << "the first of equal logits is chosen";
  EXPECT_EQ(run({}, {}, 4), (std::vector<double>{0, 0, 0}));
  LossProblem problem;
  problem.classes = 0;
  const Status status = cuda() ? cuda::softmax_loss(problem, {}, nullptr) : cpu::softmax_loss(problem, {});
  EXPECT_EQ(status.code, Code::kInvalid);
}

TEST_P(StepKernels, VerdictsAreTheCpus) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  std::mt19937_64 random(11);
  for (int rules_number = 0; rules_number < 8; ++rules_number) {
    UpdateRules rules;
    rules.stops = (rules_number & 1) != 0;
    rules.scales = (rules_number & 2) != 0;
    rules.clip_norm = (rules_number & 4) != 0 ? 1.5 : 0;
    rules.growth_interval = 3;
    std::vector<double> expected(kUpdateSlots, 0.0);
    expected[kLossScale] = rules.scales ? 1024 : 1;
    std::vector<double> values = expected;
    std::int64_t row = 0, expected_row = 0;
    std::vector<double> rates(128);
    for (std::size_t i = 0; i < rates.size(); ++i) rates[i] = 0.3 * static_cast<double>(i);
    for (int update = 0; update < 40; ++update) {
      const double norms[] = {1, 2.5, 1e-3, kInf, kNan, 700}, losses[] = {3, 1, 2, kNan, kInf, 5};
      const bool odd = update > 2 && random() % 4 == 0;
      const double norm = norms[odd ? random() % 6 : random() % 3], loss = losses[odd ? random() % 6 : random() % 3];
      const std::vector<double> group{4 * loss, 2, 4};
      UpdateState state;
      std::uint8_t good = 9, expected_good = 9;
      float skip = 9, divisor = 9, average = 9, expected_skip = 9, expected_divisor = 9, expected_average = 9;
      double factor = 9, expected_factor = 9;
      state = {expected.data(), &norm,       group.data(),      rates.data(),     &expected_row,
               &expected_good,  &expected_skip, &expected_divisor, &expected_factor, &expected_average};
      ASSERT_TRUE(cpu::judge_update(rules, state).ok());
      if (!cuda()) {
        EXPECT_EQ(expected_good, expected[kStopped] == 0 && std::isfinite(norm) && std::isfinite(loss) ? 1 : 0);
        continue;
      }
      DeviceBuffers device(GetParam());
      const auto values_bytes = bytes_of(values), row_bytes = bytes_of(std::vector<std::int64_t>{row});
      const auto out = std::make_shared<Bytes>(64, kSentinel);  // factor, skip, divisor, average, good
      auto* base = static_cast<std::uint8_t*>(device.put(out));
      state = {static_cast<double*>(device.put(values_bytes)),
               static_cast<const double*>(device.put(bytes_of(std::vector<double>{norm}))),
               static_cast<const double*>(device.put(bytes_of(group))),
               static_cast<const double*>(device.put(bytes_of(rates))),
               static_cast<std::int64_t*>(device.put(row_bytes)),
               base + 20,
               reinterpret_cast<float*>(base + 8),
               reinterpret_cast<float*>(base + 12),
               reinterpret_cast<double*>(base),
               reinterpret_cast<float*>(base + 16)};
      ASSERT_TRUE(cuda::judge_update(rules, state, nullptr).ok());
      ASSERT_EQ(device.fetch(), "");
      values = values_of<double>(*values_bytes);
      row = values_of<std::int64_t>(*row_bytes)[0];
      std::memcpy(&factor, out->data(), 8);
      std::memcpy(&skip, out->data() + 8, 4);
      std::memcpy(&divisor, out->data() + 12, 4);
      std::memcpy(&average, out->data() + 16, 4);
      good = (*out)[20];
      const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
      for (int i = 0; i < kUpdateSlots; ++i) {
        const auto slot = static_cast<std::size_t>(i);
        EXPECT_TRUE(same(values[slot], expected[slot])) << "rules " << rules_number << " slot " << i;
      }
      EXPECT_EQ(row, expected_row);
      EXPECT_EQ(good, expected_good);
      EXPECT_EQ(skip, expected_skip);
      EXPECT_TRUE(same(divisor, expected_divisor));
      EXPECT_EQ(factor, expected_factor);
      EXPECT_EQ(average, expected_average);
    }
    EXPECT_GT(expected[kUpdates], 0);
  }
  UpdateState nothing;
  EXPECT_EQ((cuda() ? cuda::judge_update({}, nothing, nullptr) : cpu::judge_update({}, nothing)).code, Code::kInvalid);
}

INSTANTIATE_TEST_SUITE_P(Backends, StepKernels, ::testing::Values(Device::kCpu, Device::kCuda),
                         [](const auto& info) { return backend_name(info.param); });

}  // namespace
}  // namespace axial::kernels::testing
