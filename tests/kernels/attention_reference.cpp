#include "tests/kernels/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/philox.h"

namespace axial::kernels::testing {
namespace {

// factors[j] of probability (query, key j) under dropout: 0, or 1 / (1 - p).
void keep_factors(const ReferenceInput& input, const DropoutRate& rate, std::int64_t line, std::int64_t head,
                  std::int64_t query, std::vector<double>& factors) {
  std::fill(factors.begin(), factors.end(), 1);
  if (rate.threshold == 0) return;
  const std::uint64_t row = static_cast<std::uint64_t>((input.first_line + line) * input.heads + head);
  const std::uint64_t key = dropout_key(input.seed, input.offset, input.stream);
  Philox4 draws = {};
  for (std::uint32_t j = 0; j < factors.size(); ++j) {
    if (j % 16 == 0) draws = dropout_draws(key, row, static_cast<std::uint32_t>(query), j / 16);
    factors[j] = dropout_keeps(draws, j, rate.threshold) ? rate.scale : 0;
  }
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

void add(double factor, const double* from, double* to, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) to[c] += factor * from[c];
}

}  // namespace

ReferenceOutput reference(const ReferenceInput& input) {
  const std::int64_t length = input.length, heads = input.heads, d = input.head_dim;
  const std::size_t elements = static_cast<std::size_t>(input.lines * length * heads * d);
  const bool backward = !input.d_o.empty();
  const DropoutRate rate = dropout_rate(input.dropout);
  ReferenceOutput out;
  out.o.assign(elements, 0);
  out.row_max.assign(static_cast<std::size_t>(input.lines * heads * length), 0);
  out.row_sum = out.row_max;
  if (backward) out.dq = out.dk = out.dv = out.o;
  if (backward) out.d_bias.assign(input.bias.size(), 0);
  std::vector<double> p(static_cast<std::size_t>(length)), keep(static_cast<std::size_t>(length));
  for (std::int64_t line = 0; line < input.lines; ++line) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto at = [&](std::int64_t token) { return ((line * length + token) * heads + head) * d; };
      const auto bias_at = [&](std::int64_t i, std::int64_t j) {
        return static_cast<std::size_t>(head * (2 * length - 1) + i - j + length - 1);
      };
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t keys = input.causal ? i + 1 : length;
        const double* q = input.q.data() + at(i);
        double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          p[j] = input.scale * dot(q, input.k.data() + at(j), d);
          if (!input.bias.empty()) p[j] += input.bias[bias_at(i, j)];
          maximum = std::max(maximum, p[j]);
        }
        for (std::int64_t j = 0; j < keys; ++j) sum += p[j] = std::exp(p[j] - maximum);
        keep_factors(input, rate, line, head, i, keep);
        double* o = out.o.data() + at(i);
        for (std::int64_t j = 0; j < keys; ++j) {
          p[j] /= sum;
          add(p[j] * keep[j], input.v.data() + at(j), o, d);
        }
        const std::int64_t row = (line * heads + head) * length + i;
        out.row_max[row] = maximum * std::log2(std::exp(1.0));
        out.row_sum[row] = sum;
        if (!backward) continue;
        const double* d_o = input.d_o.data() + at(i);
        const double delta = dot(d_o, o, d);
        for (std::int64_t j = 0; j < keys; ++j) {
          const double dp = keep[j] * dot(d_o, input.v.data() + at(j), d);
          const double ds = keys == 1 ? 0 : p[j] * (dp - delta);
          add(p[j] * keep[j], d_o, out.dv.data() + at(j), d);
          add(input.scale * ds, input.k.data() + at(j), out.dq.data() + at(i), d);
          add(input.scale * ds, q, out.dk.data() + at(j), d);
          if (!input.bias.empty()) out.d_bias[bias_at(i, j)] += ds;
        }
      }
    }
  }
  return out;
}

}  // namespace axial::kernels::testing
