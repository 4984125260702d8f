#include "tests/kernels/pass_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace axial::kernels::testing {
namespace {

using Values = std::vector<double>;

Values transposed(const Values& matrix, std::int64_t rows, std::int64_t columns) {
  Values result(matrix.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) result[c * rows + r] = matrix[r * columns + c];
  }
  return result;
}

void add(double factor, const double* from, double* to, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) to[c] += factor * from[c];
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

// to[n] += a[k] b[k, n]
void multiply(const double* a, const double* b, double* to, std::int64_t k, std::int64_t n) {
  for (std::int64_t i = 0; i < k; ++i) add(a[i], b + i * n, to, n);
}

// to[m, n] += a[m] b[n]
void outer_product(const double* a, const double* b, double* to, std::int64_t m, std::int64_t n) {
  for (std::int64_t i = 0; i < m; ++i) add(a[i], b, to + i * n, n);
}

class Pass {
 public:
  explicit Pass(const PassReferenceInput& input)
      : in(input),
        w(input.weights),
        length(input.lines.length),
        dim(input.dim),
        heads(input.heads),
        d(input.heads == 0 ? 0 : input.dim / input.heads),
        scale(1 / std::sqrt(static_cast<double>(d))),
        qkv_turned(transposed(w.qkv_weight, 3 * dim, dim)),
        out_turned(transposed(w.out_weight, dim, dim)) {
    out.y = in.x;
    if (!in.dy.empty()) {
      out.dx = in.dy;
      for (const PassParameter& parameter : kPassParameters) {
        (out.gradients.*parameter.values).assign((w.*parameter.values).size(), 0);
      }
    }
    const std::size_t rows = static_cast<std::size_t>(in.lines.count() * heads * length);
    out.top.assign(rows, 0);
    out.gap.assign(rows, 0);
  }

  PassReferenceOutput run() {
    for (line = 0; line < in.lines.count(); ++line) {
      const std::int64_t i2 = line % in.lines.outer[2], rest = line / in.lines.outer[2];
      const std::int64_t i1 = rest % in.lines.outer[1], i0 = rest / in.lines.outer[1];
      first = i0 * in.outer_stride[0] + i1 * in.outer_stride[1] + i2 * in.outer_stride[2];
      sample_scale = in.sample_scale.empty() ? 1 : in.sample_scale[i0];
      forward();
      if (!in.dy.empty()) backward();
    }
    return std::move(out);
  }

 private:
  std::int64_t token(std::int64_t t) const { return first + t * in.token_stride; }
  double keep(std::int64_t head, std::int64_t i, std::int64_t j) const {
    if (in.keep.empty()) return 1;
    return in.keep[((line * heads + head) * length + i) * length + j] != 0 ? in.keep_scale : 0;
  }
  std::size_t bias_at(std::int64_t head, std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(head * (2 * length - 1) + i - j + length - 1);
  }
  std::int64_t keys(std::int64_t query) const { return in.causal ? query + 1 : length; }
  // s_b drop: what channel c of a token's branch is multiplied by.
  double branch_scale(std::int64_t t, std::int64_t c) const {
    if (in.projection_keep.empty()) return sample_scale;
    return in.projection_keep[(line * length + t) * dim + c] != 0 ? sample_scale * in.projection_scale : 0;
  }
  // Q and K of a token [2, D], or their gradients, turn by its angles; `sign` -1: back.
  void turn(double* row, std::int64_t t, double sign) const {
    if (in.rotary.empty()) return;
    for (std::int64_t pair = 0; pair < dim; ++pair, row += 2) {
      const double* angle = &in.rotary[(t * (d / 2) + pair % (d / 2)) * 2];
      const double a = row[0], b = row[1], sine = sign * angle[1];
      row[0] = a * angle[0] - b * sine;
      row[1] = a * sine + b * angle[0];
    }
  }

  void forward() {
    x_hat.assign(length * dim, 0);
    z = o = x_hat;
    rstd.assign(length, 0);
    qkv.assign(length * 3 * dim, 0);
    p.assign(heads * length * length, 0);
    for (std::int64_t t = 0; t < length; ++t) {
      const double* x = in.x.data() + token(t);
      double mean = 0, variance = 0;
      for (std::int64_t c = 0; c < dim; ++c) mean += x[c] / static_cast<double>(dim);
      for (std::int64_t c = 0; c < dim; ++c) variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(dim);
      rstd[t] = 1 / std::sqrt(variance + in.eps);
      for (std::int64_t c = 0; c < dim; ++c) {
        x_hat[t * dim + c] = (x[c] - mean) * rstd[t];
        z[t * dim + c] = w.norm_weight[c] * x_hat[t * dim + c] + w.norm_bias[c];
      }
      double* to = &qkv[t * 3 * dim];
      std::copy(w.qkv_bias.begin(), w.qkv_bias.end(), to);
      multiply(&z[t * dim], qkv_turned.data(), to, dim, 3 * dim);
      turn(to, t, 1);
    }
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < length; ++i) attend(head, i);
    }
    for (std::int64_t t = 0; t < length; ++t) {
      Values u = w.out_bias;
      multiply(&o[t * dim], out_turned.data(), u.data(), dim, dim);
      for (std::int64_t c = 0; c < dim; ++c) out.y[token(t) + c] += branch_scale(t, c) * u[c];
    }
  }

  // One query: its probabilities and its row of O.
  void attend(std::int64_t head, std::int64_t i) {
    double* row = &p[(head * length + i) * length];
    double top = -std::numeric_limits<double>::infinity(), next = top, sum = 0;
    for (std::int64_t j = 0; j < keys(i); ++j) {
      row[j] = scale * dot(&qkv[i * 3 * dim + head * d], &qkv[j * 3 * dim + dim + head * d], d);
      if (!w.bias.empty()) row[j] += w.bias[bias_at(head, i, j)];
      next = std::max(next, std::min(top, row[j]));
      top = std::max(top, row[j]);
    }
    for (std::int64_t j = 0; j < keys(i); ++j) sum += row[j] = std::exp(row[j] - top);
    for (std::int64_t j = 0; j < keys(i); ++j) {
      row[j] /= sum;
      add(row[j] * keep(head, i, j), &qkv[j * 3 * dim + 2 * dim + head * d], &o[i * dim + head * d], d);
    }
    out.top[(line * heads + head) * length + i] = top;
    out.gap[(line * heads + head) * length + i] = top - next;
  }

  void backward() {
    PassParameters& g = out.gradients;
    d_qkv.assign(length * 3 * dim, 0);
    d_o.assign(length * dim, 0);
    Values du(dim);
    for (std::int64_t t = 0; t < length; ++t) {
      for (std::int64_t c = 0; c < dim; ++c) du[c] = branch_scale(t, c) * in.dy[token(t) + c];
      add(1, du.data(), g.out_bias.data(), dim);
      outer_product(du.data(), &o[t * dim], g.out_weight.data(), dim, dim);
      multiply(du.data(), w.out_weight.data(), &d_o[t * dim], dim, dim);
    }
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < length; ++i) attend_backward(head, i);
    }
    Values dz(dim);
    for (std::int64_t t = 0; t < length; ++t) {
      double* d_row = &d_qkv[t * 3 * dim];
      turn(d_row, t, -1);
      if (!g.qkv_bias.empty()) add(1, d_row, g.qkv_bias.data(), 3 * dim);
      outer_product(d_row, &z[t * dim], g.qkv_weight.data(), 3 * dim, dim);
      std::fill(dz.begin(), dz.end(), 0);
      multiply(d_row, w.qkv_weight.data(), dz.data(), 3 * dim, dim);
      const double* hat = &x_hat[t * dim];
      double mean = 0, mean_hat = 0;  // of d x_hat, and of d x_hat o x_hat
      for (std::int64_t c = 0; c < dim; ++c) {
        g.norm_weight[c] += dz[c] * hat[c];
        g.norm_bias[c] += dz[c];
        dz[c] *= w.norm_weight[c];
        mean += dz[c] / static_cast<double>(dim);
        mean_hat += dz[c] * hat[c] / static_cast<double>(dim);
      }
      double* dx = out.dx.data() + token(t);
      for (std::int64_t c = 0; c < dim; ++c) dx[c] += rstd[t] * (dz[c] - mean - hat[c] * mean_hat);
    }
  }

  void attend_backward(std::int64_t head, std::int64_t i) {
    const double* row = &p[(head * length + i) * length];
    const double* d_row = &d_o[i * dim + head * d];
    Values dp(static_cast<std::size_t>(keys(i)));
    double delta = 0;
    for (std::int64_t j = 0; j < keys(i); ++j) {
      dp[j] = keep(head, i, j) * dot(d_row, &qkv[j * 3 * dim + 2 * dim + head * d], d);
      delta += row[j] * dp[j];
    }
    for (std::int64_t j = 0; j < keys(i); ++j) {
      const double ds = row[j] * (dp[j] - delta);
      add(row[j] * keep(head, i, j), d_row, &d_qkv[j * 3 * dim + 2 * dim + head * d], d);
      add(scale * ds, &qkv[j * 3 * dim + dim + head * d], &d_qkv[i * 3 * dim + head * d], d);
      add(scale * ds, &qkv[i * 3 * dim + head * d], &d_qkv[j * 3 * dim + dim + head * d], d);
      if (!w.bias.empty()) out.gradients.bias[bias_at(head, i, j)] += ds;
    }
  }

  const PassReferenceInput& in;
  const PassParameters& w;
  const std::int64_t length, dim, heads, d;
  const double scale;
  const Values qkv_turned, out_turned;  // [D, 3D], [D, D]
  PassReferenceOutput out;
  // Of the line in hand: its number, its first token, s_b; x_hat, z, O, dO [L, D]; Q, K, V and theirs [L, 3, D];
  // P [heads, L, L], before dropout.
  std::int64_t line = 0, first = 0;
  double sample_scale = 1;
  Values x_hat, z, o, d_o, qkv, d_qkv, p, rstd;
};

}  // namespace

void PassReferenceInput::set_dense() {
  token_stride = dim;
  outer_stride[2] = lines.length * token_stride;
  outer_stride[1] = lines.outer[2] * outer_stride[2];
  outer_stride[0] = lines.outer[1] * outer_stride[1];
}

PassReferenceOutput pass_reference(const PassReferenceInput& input) { return Pass(input).run(); }

}  // namespace axial::kernels::testing
