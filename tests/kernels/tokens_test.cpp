// The kernels of tokens.h against plain loops in float64: every type, odd shapes, each gradient wanted or not.
// Outputs and workspaces are NaN before a call and lie between sentinels.
#include "kernels/tokens.h"

#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "tests/kernels/arrays.h"
#include "tests/kernels/backend_test.h"

namespace axial::kernels::testing {
namespace {

class TokenKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* reason = unavailable({Device::kCuda, 1})) GTEST_SKIP() << reason;
  }

  void pool_matches(DType dtype, std::int64_t samples, std::int64_t tokens, std::int64_t dim) {
    SCOPED_TRACE(std::string(name(dtype)) + " pool " + std::to_string(samples) + " x " + std::to_string(tokens) +
                 " x " + std::to_string(dim));
    std::mt19937_64 generator(static_cast<std::uint64_t>(samples * 7919 + tokens * 31 + dim));
    Array x(dtype, samples * tokens * dim), g(accumulator(dtype), samples * dim), dx(dtype, samples * tokens * dim);
    Array out(accumulator(dtype), samples * dim), again(accumulator(dtype), samples * dim);
    const Values xs = x.randomise(generator, 1, 0.5);
    const Values gs = g.randomise(generator, static_cast<double>(tokens));  // so that dx is about 1
    PoolProblem problem{samples, tokens, dim, dtype, 1e-5, nullptr};
    Values mean(static_cast<std::size_t>(samples * dim), 0.0), expected(xs.size());
    for (std::int64_t t = 0; t < samples * tokens; ++t) {
      const auto n = static_cast<std::size_t>(dim);
      const double *v = xs.data() + t * dim, *slope = gs.data() + t / tokens * dim;
      double center = 0, variance = 0, mean_g = 0, mean_gx = 0;
      for (std::size_t i = 0; i < n; ++i) center += v[i] / static_cast<double>(dim);
      for (std::size_t i = 0; i < n; ++i) variance += (v[i] - center) * (v[i] - center) / static_cast<double>(dim);
      const double rstd = 1 / std::sqrt(variance + problem.eps);
      for (std::size_t i = 0; i < n; ++i) {
        mean[static_cast<std::size_t>(t / tokens * dim) + i] += (v[i] - center) * rstd / static_cast<double>(tokens);
        mean_g += slope[i] / static_cast<double>(dim * tokens);
        mean_gx += slope[i] * (v[i] - center) * rstd / static_cast<double>(dim * tokens);
      }
      for (std::size_t i = 0; i < n; ++i) {
        const double x_hat = (v[i] - center) * rstd;
        expected[static_cast<std::size_t>(t * dim) + i] =
            rstd * (slope[i] / static_cast<double>(tokens) - mean_g - x_hat * mean_gx);
      }
    }
    DeviceBuffers device(Device::kCuda);
    problem.x = x.on(device);
    const std::size_t bytes = cuda::pool_workspace(problem);
    for (const Array* to : {&out, &again}) {
      ASSERT_TRUE(cuda::pool(problem, to->on(device), device.put(poisoned(bytes)), bytes, nullptr).ok());
    }
    ASSERT_TRUE(cuda::pool_backward(problem, g.on(device), dx.on(device), nullptr).ok());
    ASSERT_EQ(device.fetch(), "");
    EXPECT_EQ(compare("mean", out.values(), mean, allowed(accumulator(dtype))), "");
    EXPECT_EQ(compare("dx", dx.values(), expected, allowed(dtype)), "");
    EXPECT_EQ(*out.operand.buffer, *again.operand.buffer);
    for (const Array* a : {&x, &g, &dx, &out}) EXPECT_EQ(a->sentinels(), "");
  }

  void positions_match(DType dtype, std::int64_t samples, std::int64_t height, std::int64_t width, std::int64_t dim) {
    SCOPED_TRACE(std::string(name(dtype)) + " positions " + std::to_string(samples) + " x " + std::to_string(height) +
                 " x " + std::to_string(width) + " x " + std::to_string(dim));
    std::mt19937_64 generator(static_cast<std::uint64_t>(samples * 7919 + height * 31 + width * 3 + dim));
    const DType sums = accumulator(dtype);
    const std::int64_t count = samples * height * width * dim;
    Array x(dtype, count), y(dtype, count), row(sums, height * dim), col(sums, width * dim);
    Array d_row(sums, height * dim), d_col(sums, width * dim), only_col(sums, width * dim);
    const Values xs = x.randomise(generator), rows = row.randomise(generator), cols = col.randomise(generator);
    Values expected(xs.size()), rows_expected(rows.size(), 0.0), cols_expected(cols.size(), 0.0);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t c = i % dim, w = i / dim % width, h = i / dim / width % height;
      const auto at = static_cast<std::size_t>(i), r = static_cast<std::size_t>(h * dim + c),
                 k = static_cast<std::size_t>(w * dim + c);
      expected[at] = xs[at] + (rows[r] + cols[k]);
      rows_expected[r] += xs[at];  // x serves as a gradient
      cols_expected[k] += xs[at];
    }
    DeviceBuffers device(Device::kCuda);
    const PositionsProblem problem{samples, height, width, dim, dtype};
    ASSERT_TRUE(
        cuda::add_positions(problem, x.on(device), row.on(device), col.on(device), y.on(device), nullptr).ok());
    const std::size_t bytes = cuda::positions_backward_workspace(problem);
    const auto backward = [&](void* to_row, void* to_col) {
      return cuda::positions_backward(problem, x.on(device), to_row, to_col, device.put(poisoned(bytes)), bytes,
                                      nullptr);
    };
    ASSERT_TRUE(backward(d_row.on(device), d_col.on(device)).ok());
    ASSERT_TRUE(backward(nullptr, only_col.on(device)).ok());
    ASSERT_EQ(device.fetch(), "");
    EXPECT_EQ(compare("y", y.values(), expected, allowed(dtype)), "");
    EXPECT_EQ(compare("d_row", d_row.values(), rows_expected, allowed(sums)), "");
    EXPECT_EQ(compare("d_col", d_col.values(), cols_expected, allowed(sums)), "");
    EXPECT_EQ(*only_col.operand.buffer, *d_col.operand.buffer);
    for (const Array* a : {&x, &y, &row, &col, &d_row, &d_col}) EXPECT_EQ(a->sentinels(), "");
  }

  // Extents of `problem` are set. `wanted`: bits of weight, bias, row_pos, col_pos.
  void stem_matches(StemProblem problem, bool bias, bool position, unsigned wanted) {
    const StemProblem& p = problem;
    const DType sums = accumulator(p.dtype);
    const std::int64_t taps = p.kernel * p.kernel * p.channels, places = p.out_height * p.out_width;
    SCOPED_TRACE(std::string(name(p.dtype)) + " stem " + std::to_string(p.samples) + " of " +
                 std::to_string(p.channels) + " x " + std::to_string(p.height) + " x " + std::to_string(p.width) +
                 ", kernel " + std::to_string(p.kernel) + " stride " + std::to_string(p.stride) + ", dim " +
                 std::to_string(p.dim) + ", wanted " + std::to_string(wanted));
    std::mt19937_64 generator(static_cast<std::uint64_t>(p.samples * 7919 + p.height * 31 + p.width * 3 + p.dim));
    Array image(p.dtype, p.samples * p.channels * p.height * p.width), y(p.dtype, p.samples * places * p.dim);
    Array weight(sums, p.dim * taps), rounded(p.dtype, p.dim * taps), b(sums, p.dim),
        dy(p.dtype, p.samples * places * p.dim);
    Array row(sums, p.out_height * p.dim), col(sums, p.out_width * p.dim);
    const Values pixels = image.randomise(generator), ws = rounded.set(weight.randomise(generator, 0.5));
    const Values bs = b.randomise(generator), rows = row.randomise(generator), cols = col.randomise(generator),
                 slopes = dy.randomise(generator);
    Values ys(slopes.size()), dw(ws.size(), 0.0), db(bs.size(), 0.0), dr(rows.size(), 0.0), dc(cols.size(), 0.0);
    for (std::int64_t i = 0; i < p.samples * places; ++i) {
      const std::int64_t sample = i / places, h = i % places / p.out_width, w = i % p.out_width;
      for (std::int64_t d = 0; d < p.dim; ++d) {
        const auto at = static_cast<std::size_t>(i * p.dim + d), r = static_cast<std::size_t>(h * p.dim + d),
                   k = static_cast<std::size_t>(w * p.dim + d), channel = static_cast<std::size_t>(d);
        double sum = (bias ? bs[channel] : 0) + (position ? rows[r] + cols[k] : 0);
        for (std::int64_t tap = 0; tap < taps; ++tap) {
          const std::int64_t c = tap / (p.kernel * p.kernel);
          const std::int64_t v = h * p.stride - p.padding + tap / p.kernel % p.kernel;
          const std::int64_t u = w * p.stride - p.padding + tap % p.kernel;
          if (v < 0 || v >= p.height || u < 0 || u >= p.width) continue;
          const double pixel =
              pixels[static_cast<std::size_t>(((sample * p.channels + c) * p.height + v) * p.width + u)];
          sum += pixel * ws[static_cast<std::size_t>(d * taps + tap)];
          dw[static_cast<std::size_t>(d * taps + tap)] += pixel * slopes[at];
        }
        ys[at] = sum;
        db[channel] += slopes[at], dr[r] += slopes[at], dc[k] += slopes[at];
      }
    }
    DeviceBuffers device(Device::kCuda);
    problem.images = image.on(device);
    problem.weight = weight.on(device);
    if (bias) problem.bias = b.on(device);
    if (position) problem.row_pos = row.on(device), problem.col_pos = col.on(device);
    ASSERT_EQ(std::string(cuda::stem(problem, y.on(device), nullptr).message), "");
    const Array grad_w(sums, p.dim * taps), grad_b(sums, p.dim), grad_r(sums, p.out_height * p.dim),
        grad_c(sums, p.out_width * p.dim);
    StemGradients gradients;
    if (wanted & 1) gradients.weight = grad_w.on(device);
    if (wanted & 2) gradients.bias = grad_b.on(device);
    if (wanted & 4) gradients.row_pos = grad_r.on(device);
    if (wanted & 8) gradients.col_pos = grad_c.on(device);
    const std::size_t bytes = cuda::stem_backward_workspace(problem, gradients);
    void* const workspace = device.put(poisoned(bytes));
    ASSERT_EQ(std::string(cuda::stem_backward(problem, dy.on(device), gradients, workspace, bytes, nullptr).message),
              "");
    ASSERT_EQ(device.fetch(), "");
    EXPECT_EQ(compare("y", y.values(), ys, allowed(p.dtype)), "");
    if (wanted & 1) {
      EXPECT_EQ(compare("d_weight", grad_w.values(), dw, allowed(sums)), "");
    }
    if (wanted & 2) {
      EXPECT_EQ(compare("d_bias", grad_b.values(), db, allowed(sums)), "");
    }
    if (wanted & 4) {
      EXPECT_EQ(compare("d_row", grad_r.values(), dr, allowed(sums)), "");
    }
    if (wanted & 8) {
      EXPECT_EQ(compare("d_col", grad_c.values(), dc, allowed(sums)), "");
    }
    for (const Array* a :
         std::initializer_list<const Array*>{&image, &weight, &y, &dy, &grad_w, &grad_b, &grad_r, &grad_c})
      EXPECT_EQ(a->sentinels(), "");
  }
};

TEST_F(TokenKernels, PoolMatchesFloat64) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t dim : {8, 24, 64, 96, 128, 264, 512, 1024}) {
      pool_matches(dtype, 3, 1, dim);
      pool_matches(dtype, 1, 150, dim);
      pool_matches(dtype, 5, 49, dim);
    }
    pool_matches(dtype, 800, 5, 64);  // one part a sample
    pool_matches(dtype, 2, 1000, 64);
  }
}

TEST_F(TokenKernels, PositionsMatchFloat64) {
  for (const DType dtype : kTypes) {
    positions_match(dtype, 1, 1, 1, 8);
    positions_match(dtype, 3, 5, 7, 24);
    positions_match(dtype, 70, 4, 3, 64);
    positions_match(dtype, 2, 9, 1, 1024);
    positions_match(dtype, 33, 1, 31, 136);
    positions_match(dtype, 0, 3, 4, 8);
  }
}

TEST_F(TokenKernels, StemMatchesFloat64) {
  for (const DType dtype : kTypes) {
    const auto problem = [&](std::int64_t samples, std::int64_t channels, std::int64_t height, std::int64_t width,
                             std::int64_t kernel, std::int64_t stride, std::int64_t padding, std::int64_t dim) {
      StemProblem p;
      p.samples = samples, p.channels = channels, p.height = height, p.width = width;
      p.kernel = kernel, p.stride = stride, p.padding = padding, p.dim = dim, p.dtype = dtype;
      // Rounded up: the last patch reaches over the edge.
      p.out_height = (height + 2 * padding - kernel + stride - 1) / stride + 1;
      p.out_width = (width + 2 * padding - kernel + stride - 1) / stride + 1;
      return p;
    };
    stem_matches(problem(3, 1, 28, 28, 3, 1, 1, 64), true, true, 15);
    stem_matches(problem(70, 1, 9, 7, 3, 2, 1, 24), false, true, 5);
    stem_matches(problem(600, 1, 4, 4, 3, 1, 1, 16), true, false, 3);
    stem_matches(problem(2, 3, 13, 10, 3, 1, 1, 72), true, true, 10);
    stem_matches(problem(19, 3, 6, 11, 3, 2, 1, 64), true, false, 1);
    stem_matches(problem(5, 4, 8, 8, 3, 2, 1, 136), true, true, 12);
    stem_matches(problem(7, 3, 9, 7, 4, 4, 0, 40), true, true, 15);
    stem_matches(problem(3, 1, 17, 9, 8, 8, 0, 104), true, false, 2);
    stem_matches(problem(3, 1, 5, 5, 4, 4, 0, 8), false, false, 15);
    stem_matches(problem(1, 1, 1, 1, 3, 1, 1, 8), true, true, 15);
    stem_matches(problem(1, 2, 3, 2, 1, 1, 0, 1024), true, true, 15);
    stem_matches(problem(0, 1, 5, 5, 3, 1, 1, 8), true, true, 15);
    stem_matches(problem(2, 1, 5, 5, 3, 1, 1, 8), true, true, 0);
  }
}

// Where they are mixed, too: what becomes of each is the definition in kernels/tokens.h.
TEST_F(TokenKernels, PixelsAreCopiedAndMixed) {
  std::mt19937_64 generator(7);
  for (const DType dtype : kTypes) {
    for (const auto& [channels, height, width] :
         std::vector<std::array<std::int64_t, 3>>{{1, 28, 28}, {3, 9, 13}, {1, 1, 1}, {4, 32, 40}, {2, 3, 4}}) {
      for (const auto& [augmented, mixed] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(channels) + " x " + std::to_string(height) +
                     " x " + std::to_string(width) + (augmented ? " augmented" : "") + (mixed ? " mixed" : ""));
        const std::int64_t set = 23, count = 37, size = channels * height * width;
        const auto draw = [&](std::int64_t low, std::int64_t high) {
          return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
        };
        const auto longs = [](const std::vector<std::int64_t>& from) {
          const auto* bytes = reinterpret_cast<const std::uint8_t*>(from.data());
          return std::make_shared<Bytes>(bytes, bytes + from.size() * sizeof(std::int64_t));
        };
        const auto images = poisoned(static_cast<std::size_t>(set * size));
        for (auto& byte : *images) byte = static_cast<std::uint8_t>(draw(0, 255));
        Array table(dtype, channels * 256), out(dtype, count * size);
        const Values values = table.randomise(generator);
        std::vector<std::int64_t> samples(static_cast<std::size_t>(count)), rows;
        Values expected;
        for (auto& sample : samples) {
          sample = draw(0, set - 1);
          const std::int64_t dy = draw(-height, height), dx = draw(-width, width), flip = draw(0, 1),
                             y0 = draw(0, height), x0 = draw(0, width), y1 = draw(y0, height), x1 = draw(x0, width);
          rows.insert(rows.end(), {dy, dx, flip, y0, x0, y1, x1, 0});
          for (std::int64_t i = 0; i < size; ++i) {
            const std::int64_t c = i / (height * width), y = i / width % height, x = i % width;
            const std::int64_t v = augmented ? y + dy : y, u = augmented ? (flip ? width - 1 - x : x) + dx : x;
            const bool inside = v >= 0 && v < height && u >= 0 && u < width;
            const bool boxed = augmented && y >= y0 && y < y1 && x >= x0 && x < x1;
            const std::uint8_t byte =
                inside ? (*images)[static_cast<std::size_t>(sample * size + (c * height + v) * width + u)] : 0;
            expected.push_back(boxed ? 0 : values[static_cast<std::size_t>(c * 256 + byte)]);
          }
        }
        std::vector<std::int64_t> mixes;
        const Values unmixed = expected;
        for (std::int64_t sample = 0; mixed && sample < count; ++sample) {
          const std::int64_t partner = draw(0, count - 1), kind = draw(0, 2);  // kind: nothing, a box, weights
          const std::int64_t y0 = draw(0, height - 1), x0 = draw(0, width - 1), y1 = draw(y0 + 1, height),
                             x1 = draw(x0 + 1, width), sixteenths = draw(0, 16);
          const float weight = kind == 2 ? static_cast<float>(sixteenths) / 16 : 1;
          const auto bits = static_cast<std::int64_t>(std::bit_cast<std::int32_t>(weight));
          if (kind == 1) {
            mixes.insert(mixes.end(), {partner, bits, y0, x0, y1, x1});
          } else {
            mixes.insert(mixes.end(), {partner, bits, 0, 0, 0, 0});
          }
          for (std::int64_t i = 0; i < size; ++i) {
            const std::int64_t y = i / width % height, x = i % width;
            double& value = expected[static_cast<std::size_t>(sample * size + i)];
            const double other = unmixed[static_cast<std::size_t>(partner * size + i)];
            if (kind == 1 && y >= y0 && y < y1 && x >= x0 && x < x1) value = other;
            if (kind != 2) continue;
            const float own = static_cast<float>(weight * value), rest = static_cast<float>((1 - weight) * other);
            value =
                dtype == DType::kFloat64 ? weight * value + (1 - weight) * other : static_cast<double>(own + rest);
          }
        }
        expected = Array(dtype, count * size).set(expected);  // rounded
        DeviceBuffers device(Device::kCuda);
        PixelsProblem p{count, channels, height, width, dtype};
        p.images = static_cast<const std::uint8_t*>(device.put(images));
        p.table = table.on(device);
        p.samples = static_cast<const std::int64_t*>(device.put(longs(samples)));
        if (augmented) p.rows = static_cast<const std::int64_t*>(device.put(longs(rows)));
        if (mixed) p.mixes = static_cast<const std::int64_t*>(device.put(longs(mixes)));
        ASSERT_TRUE(cuda::pixels(p, out.on(device), nullptr).ok());
        ASSERT_EQ(device.fetch(), "");
        EXPECT_EQ(out.values(), expected);
        EXPECT_EQ(out.sentinels(), "");
      }
    }
  }
}

TEST(Tokens, WhatIsNotCoveredIsNamed) {
  const auto expect = [](const Status& status, Code code, const char* part) {
    EXPECT_EQ(status.code, code) << status.message;
    EXPECT_NE(std::string(status.message).find(part), std::string::npos) << status.message;
  };
  PoolProblem pool{2, 3, 64, DType::kFloat32};
  EXPECT_TRUE(supported(pool).ok());
  pool.dim = 12;
  expect(supported(pool), Code::kUnsupported, "12 channels");
  pool.dim = 1032;
  expect(supported(pool), Code::kUnsupported, "1032 channels");
  pool.dim = 64, pool.tokens = 0;
  expect(supported(pool), Code::kInvalid, "0 x 1 tokens");
  pool.tokens = 3, pool.eps = -1;
  expect(supported(pool), Code::kInvalid, "eps is -1");
  expect(supported(PositionsProblem{1, 1 << 20, 1 << 20, 8, DType::kFloat32}), Code::kUnsupported, "2^31 - 1");
  StemProblem stem;
  stem.channels = 1, stem.height = stem.width = stem.out_height = stem.out_width = 9;
  stem.kernel = 8, stem.stride = 1, stem.dim = 8;
  EXPECT_TRUE(supported(stem).ok());
  stem.kernel = 9;
  expect(supported(stem), Code::kUnsupported, "9 x 9 taps");
  stem.kernel = 3, stem.stride = 0;
  expect(supported(stem), Code::kInvalid, "stride 0");
  expect(supported(PixelsProblem{1, 0, 4, 4, DType::kFloat16}), Code::kInvalid, "0 x 4 x 4");
}

TEST_F(TokenKernels, NullAndMisalignedTensorsAreNamed) {
  const PoolProblem pool{2, 3, 64, DType::kFloat32};
  EXPECT_EQ(std::string(cuda::pool(pool, nullptr, nullptr, 0, nullptr).message), "pool: a null tensor");
  alignas(16) char memory[32] = {};
  const PositionsProblem positions{1, 1, 1, 8, DType::kFloat32};
  EXPECT_EQ(std::string(cuda::add_positions(positions, memory, memory, memory + 4, memory, nullptr).message),
            "add_positions: a tensor does not start at 16 bytes");
  EXPECT_EQ(cuda::positions_backward(positions, memory, memory, nullptr, nullptr, 0, nullptr).code, Code::kInvalid);
}

}  // namespace
}  // namespace axial::kernels::testing
