#include "kernels/features.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/philox.h"
#include "tests/kernels/backend_test.h"
#include "tests/kernels/device_buffers.h"

namespace axial::kernels::testing {
namespace {

class Features : public BackendTest {};
AXIAL_ON_EVERY_BACKEND(Features);

// Features of tokens draw as the keys of query 0 of a line do, and keep their masks where a batch is shared out.
TEST_P(Features, MasksAreThoseOfTheScheme) {
  constexpr std::int64_t kTokens = 7, kFeatures = 37;
  const auto features = [&](std::int64_t tokens, std::int64_t first, const Backend& backend) {
    DeviceBuffers device(backend.device);
    auto rng = std::make_shared<Bytes>(2 * sizeof(std::uint64_t));
    const std::uint64_t state[2] = {11, 5};
    std::memcpy(rng->data(), state, sizeof state);
    auto keep = std::make_shared<Bytes>(static_cast<std::size_t>(tokens * kFeatures), kSentinel);
    Dropout dropout;
    dropout.p = 0.3;
    dropout.rng = static_cast<const std::uint64_t*>(device.put(rng));
    dropout.stream = 3;
    dropout.first_line = first;
    auto* to = static_cast<std::uint8_t*>(device.put(keep));
    const Status status = backend.device == Device::kCpu
                              ? cpu::feature_mask(tokens, kFeatures, dropout, to, executor_of(backend))
                              : cuda::feature_mask(tokens, kFeatures, dropout, to, nullptr);
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(device.fetch(), "");
    return *keep;
  };
  const std::int64_t first = (std::int64_t{1} << 33) + 2;
  const auto all = features(kTokens, first, backend_);
  const DropoutRate rate = dropout_rate(0.3);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t c = 0; c < kFeatures; ++c) {
      const Philox4 draws = dropout_draws(dropout_key(11, 5, 3), static_cast<std::uint64_t>(first + t), 0,
                                          static_cast<std::uint32_t>(c / 16));
      EXPECT_EQ(all[static_cast<std::size_t>(t * kFeatures + c)],
                dropout_keeps(draws, static_cast<std::uint32_t>(c), rate.threshold))
          << t << " " << c;
    }
  }
  const auto part = features(kTokens - 4, first + 4, backend_);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.end() - static_cast<std::ptrdiff_t>(part.size())));
  features(0, 0, backend_);
}

}  // namespace
}  // namespace axial::kernels::testing
