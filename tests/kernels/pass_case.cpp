#include "tests/kernels/pass_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <sstream>

namespace axial::kernels::testing {
namespace {

// Numbers fixed by a seed, the same on every platform (SplitMix64, Box-Muller).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x5851F42Dull) {}
  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n)); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <class T, std::size_t n>
  T of(const T (&values)[n]) {
    return values[below(n)];
  }
  double normal() {
    const double u = static_cast<double>(bits() >> 11) * 0x1p-53, v = static_cast<double>(bits() >> 11) * 0x1p-53;
    return std::sqrt(-2 * std::log(1 - u)) * std::cos(2 * std::numbers::pi * v);
  }
  std::vector<double> normals(std::int64_t n, double mean, double deviation) {
    std::vector<double> values(static_cast<std::size_t>(n));
    for (double& value : values) value = mean + deviation * normal();
    return values;
  }

 private:
  std::uint64_t state_;
};

// As float32 holds them.
void round_to_float(std::vector<double>& values) {
  for (double& value : values) value = static_cast<float>(value);
}

}  // namespace

std::string PassCase::describe() const {
  const char* names[] = {"rows", "columns", "padded rows", "padded columns", "sliced", "reversed", "expanded"};
  const auto layout = [&](TokenLayout l) { return names[static_cast<int>(l)]; };
  std::ostringstream text;
  text << "outer " << outer[0] << "x" << outer[1] << "x" << outer[2] << " L " << length << " D " << dim << " heads "
       << heads << " " << name(dtype) << (float32_residual ? " float32 residual" : "") << (causal ? " causal" : "")
       << (qkv_bias ? " qkv bias" : "") << (bias ? " bias" : "") << (sample_scale ? " sample scale" : "")
       << (rotary ? " rotary" : "") << " dropout " << dropout << " of the branch " << projection
       << (numbers == TokenNumbers::kColumns ? " by columns" : "") << " x " << x_offset << " + " << x_gain
       << " n, dy " << dy_gain << " n, gains " << score_gain << " " << out_gain << " x " << layout(x) << " y "
       << layout(y) << " dy " << layout(dy) << " dx " << layout(dx) << " shift " << shift << " " << token_shift
       << " seed " << seed;
  return text.str();
}

Lines PassCase::lines() const {
  Lines lines;
  std::copy(outer, outer + kMaxOuter, lines.outer);
  lines.length = length;
  return lines;
}

Case PassCase::tokens() const {
  Case c;
  std::copy(outer, outer + kMaxOuter, c.outer);
  c.length = length;
  c.heads = 1;
  c.head_dim = dim;
  c.dtype = stored();
  c.shift = token_shift;
  return c;
}

void PassCase::set_dropouts(PassProblem* problem, const std::uint64_t* rng) const {
  problem->dropout.p = dropout;
  problem->dropout.rng = dropout > 0 ? rng : nullptr;
  problem->dropout.stream = stream;
  problem->dropout.first_line = first_line;
  problem->projection.p = projection;
  problem->projection.rng = projection > 0 ? rng : nullptr;
  problem->projection.stream = stream + (std::uint64_t{1} << 32);
  problem->projection.first_line = first_token;
  const std::int64_t across = outer[1] * outer[2];
  const bool rows = numbers == TokenNumbers::kRows;
  problem->projection_outer[0] = across * length;
  problem->projection_outer[1] = outer[2] * (rows ? length : 1);
  problem->projection_outer[2] = rows ? length : 1;
  problem->projection_token = rows ? 1 : across;
}

std::vector<std::uint8_t> PassCase::by_line(const Bytes& keep) const {
  PassProblem problem;
  set_dropouts(&problem, nullptr);
  std::vector<std::uint8_t> result;
  result.reserve(keep.size());
  for (std::int64_t line = 0; line < lines().count(); ++line) {
    const std::int64_t at[kMaxOuter] = {line / outer[2] / outer[1], line / outer[2] % outer[1], line % outer[2]};
    for (std::int64_t t = 0; t < length; ++t) {
      std::int64_t number = t * problem.projection_token;
      for (int i = 0; i < kMaxOuter; ++i) number += at[i] * problem.projection_outer[i];
      const auto from = keep.begin() + number * dim;
      result.insert(result.end(), from, from + dim);
    }
  }
  return result;
}

Operand make_tokens(const PassCase& c, TokenLayout layout) {
  const Case tokens = c.tokens();
  switch (layout) {
    case TokenLayout::kRows:
      return make_operands(tokens, Layout::kContiguous, 1)[0];
    case TokenLayout::kPaddedRows:
      return make_operands(tokens, Layout::kQkvRows, 1)[0];
    case TokenLayout::kPaddedColumns:
      return make_operands(tokens, Layout::kQkvColumns, 1)[0];
    case TokenLayout::kSliced:
      return make_operands(tokens, Layout::kSliced, 1)[0];
    case TokenLayout::kReversed:
      return make_operands(tokens, Layout::kReversed, 1)[0];
    case TokenLayout::kColumns:
      break;
    case TokenLayout::kExpanded:
      Operand one = make_operands(tokens, Layout::kContiguous, 1)[0];
      one.strides = {};
      one.buffer = sentinel_buffer(c.dim + 2 * kMargin, element_size(c.stored()));
      return one;
  }
  // Columns with their padding taken out.
  Operand columns = make_operands(tokens, Layout::kQkvColumns, 1)[0];
  for (std::int64_t& stride : columns.strides.outer_stride) stride /= 3;
  columns.strides.token_stride /= 3;
  columns.buffer = sentinel_buffer(lines_of(tokens) * c.length * c.dim + 2 * kMargin, element_size(c.stored()));
  return columns;
}

std::shared_ptr<Bytes> float_array(const PassCase& c, const std::vector<double>& values) {
  auto buffer = sentinel_buffer(c.shift + static_cast<std::int64_t>(values.size()), sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = static_cast<float>(values[i]);
    std::memcpy(buffer->data() + (static_cast<std::size_t>(c.shift) + i) * sizeof(float), &value, sizeof(float));
  }
  return buffer;
}

std::size_t rotary_offset(const PassCase& c) {
  return static_cast<std::size_t>(2 * c.shift) * accumulator_size(c.dtype);
}

namespace {

// Cosine and sine of random angles, as the type of the table holds them.
void make_rotary(const PassCase& c, PassInputs& in) {
  Random random(2 * c.seed + 7000003);
  const std::int64_t pairs = c.length * (c.dim / c.heads / 2);
  std::vector<double>& values = in.reference.rotary;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(random.bits() >> 11) * 0x1p-53;
    values.push_back(std::cos(angle));
    values.push_back(std::sin(angle));
  }
  if (c.dtype != DType::kFloat64) round_to_float(values);
  const std::size_t size = accumulator_size(c.dtype);
  in.rotary = sentinel_buffer(2 * c.shift + 2 * pairs, size);
  std::uint8_t* to = in.rotary->data() + rotary_offset(c);
  for (const double value : values) {
    const float narrow = static_cast<float>(value);
    std::memcpy(to, size == sizeof(double) ? static_cast<const void*>(&value) : &narrow, size);
    to += size;
  }
}

}  // namespace

PassInputs make_pass_inputs(const PassCase& c) {
  PassInputs in;
  PassReferenceInput& r = in.reference;
  r.lines = c.lines();
  r.dim = c.dim;
  r.heads = c.heads;
  r.eps = static_cast<float>(c.eps());
  r.causal = c.causal;
  r.keep_scale = dropout_rate(c.dropout).scale;
  r.projection_scale = dropout_rate(c.projection).scale;
  r.set_dense();

  // The weights do not depend on how many tokens there are.
  Random random(2 * c.seed);
  PassParameters& w = r.weights;
  const double root = 1 / std::sqrt(static_cast<double>(c.dim));
  w.norm_weight = random.normals(c.dim, 1, 0.3);
  w.norm_bias = random.normals(c.dim, 0, 0.3);
  w.qkv_weight = random.normals(3 * c.dim * c.dim, 0, root);
  for (std::int64_t i = 0; i < 2 * c.dim * c.dim; ++i) w.qkv_weight[static_cast<std::size_t>(i)] *= c.score_gain;
  w.out_weight = random.normals(c.dim * c.dim, 0, c.out_gain * root);
  w.out_bias = random.normals(c.dim, 0, 0.3);
  if (c.qkv_bias) w.qkv_bias = random.normals(3 * c.dim, 0, 0.5);
  if (c.bias) w.bias = random.normals(std::max<std::int64_t>(c.heads * (2 * c.length - 1), 0), 0, 1);
  for (int i = 0; i < kPassParameterCount; ++i) {
    std::vector<double>& values = w.*kPassParameters[i].values;
    round_to_float(values);
    if (!values.empty()) in.parameters[i] = float_array(c, values);
  }
  const std::uint64_t rng[2] = {c.rng_seed, c.rng_offset};
  in.rng = std::make_shared<Bytes>(sizeof(rng));
  std::memcpy(in.rng->data(), rng, sizeof(rng));
  if (c.rotary) make_rotary(c, in);

  Random data(2 * c.seed + 1);
  if (c.sample_scale) {  // stochastic depth drops some samples
    for (std::int64_t i = 0; i < c.outer[0]; ++i)
      r.sample_scale.push_back(data.one_in(4) ? 0 : 0.8 + 0.1 * static_cast<double>(data.below(9)));
    round_to_float(r.sample_scale);
    in.sample_scale = float_array(c, r.sample_scale);
  }
  const std::int64_t elements = lines_of(c.tokens()) * c.length * c.dim;
  in.x = make_tokens(c, c.x);
  in.dy = make_tokens(c, c.dy);
  set_values(c.tokens(), in.x, data.normals(elements, c.x_offset, c.x_gain), r.x);
  set_values(c.tokens(), in.dy, data.normals(elements, 0, c.dy_gain), r.dy);
  return in;
}

PassInputs repeated_inputs(const PassCase& c, const PassCase& base) {
  PassInputs in = make_pass_inputs(base);
  const auto repeat = [](const std::vector<double>& values, std::int64_t count) {
    std::vector<double> result;
    result.reserve(static_cast<std::size_t>(count));
    while (result.size() < static_cast<std::size_t>(count)) result.insert(result.end(), values.begin(), values.end());
    return result;
  };
  const std::int64_t elements = lines_of(c.tokens()) * c.length * c.dim;
  std::vector<double> all;
  in.x = make_tokens(c, c.x);
  in.dy = make_tokens(c, c.dy);
  set_values(c.tokens(), in.x, repeat(in.reference.x, elements), all);
  set_values(c.tokens(), in.dy, repeat(in.reference.dy, elements), all);
  if (c.sample_scale) in.sample_scale = float_array(c, repeat(in.reference.sample_scale, c.outer[0]));
  return in;
}

PassCase random_pass_case(std::uint64_t seed) {
  Random random(seed + 1000003);
  PassCase c;
  c.seed = seed;
  c.dtype = random.one_in(2) ? DType::kBFloat16 : DType::kFloat16;
  // Half of the problems have D = 64 and lines that a backward takes.
  const bool trained = random.one_in(2);
  const PassWidth width = trained ? kPassWidths[5 + random.below(3)] : random.of(kPassWidths);
  c.dim = width.dim;
  c.heads = width.heads;
  const std::int64_t lengths[] = {1,  2,  3,  4,  5,  7,  8,  9,  14,  16,  17, 28,
                                  31, 32, 33, 48, 50, 63, 64, 65, 100, 127, 128};
  c.length = random.one_in(2) ? random.of(lengths) : random.below(kMaxPassLength) + 1;
  if (trained) c.length = (c.length - 1) % (16 * c.heads) + 1;
  // Up to about 2000 tokens; the image is not square.
  const std::int64_t most = std::max<std::int64_t>(2000 / c.length, 1);
  c.outer[0] = random.below(std::min<std::int64_t>(most, 5)) + 1;
  c.outer[1] = random.below(std::min<std::int64_t>(most / c.outer[0] + 1, 40)) + 1;
  if (c.outer[1] == c.length) ++c.outer[1];
  if (random.one_in(3)) c.outer[2] = random.below(3) + 2;
  c.causal = random.one_in(4);
  c.qkv_bias = random.one_in(2);
  c.bias = random.one_in(3);
  c.sample_scale = random.one_in(4);
  if (random.one_in(4)) c.dropout = static_cast<double>(random.below(6) + 1) / 10;
  c.rng_seed = random.bits();
  c.rng_offset = static_cast<std::uint64_t>(random.below(1000));
  c.stream = static_cast<std::uint64_t>(random.below(100));
  c.first_line = random.below(1 << 20);
  const double gains[] = {0.5, 1, 1.5};
  c.score_gain = random.of(gains);
  if (random.one_in(2)) {  // the residual vanishes
    c.x_gain = 0x1p-12;
    if (c.dtype == DType::kFloat16) c.dy_gain = 0.125;  // dx is 4096 times as large
  }
  const TokenLayout layouts[] = {TokenLayout::kRows,    TokenLayout::kRows,       TokenLayout::kColumns,
                                 TokenLayout::kColumns, TokenLayout::kPaddedRows, TokenLayout::kPaddedColumns,
                                 TokenLayout::kSliced,  TokenLayout::kReversed};
  c.x = random.of(layouts);
  c.y = c.dy = c.dx = c.x;  // as in a network; or each as it likes
  if (random.one_in(2)) {
    c.y = random.of(layouts);
    c.dy = random.one_in(6) ? TokenLayout::kExpanded : random.of(layouts);
    c.dx = random.of(layouts);
  }
  c.shift = random.one_in(3) ? random.below(4) : 0;
  c.rotary = random.one_in(4);
  if (random.one_in(4)) c.projection = static_cast<double>(random.below(6) + 1) / 10;
  if (random.one_in(2)) c.numbers = TokenNumbers::kColumns;
  c.first_token = random.below(std::int64_t{1} << 34);
  c.float32_residual = random.one_in(5);
  return c;
}

PassCase random_line_case(std::uint64_t seed) {
  PassCase c = random_pass_case(seed);
  Random random(seed + 2000003);
  const DType types[] = {DType::kFloat32, DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  c.dtype = random.of(types);
  if (random.one_in(2)) c.math = Math::kTF32;
  c.portable = true;
  c.float32_residual = false;
  const PassWidth width = random.of(kLineWidths);
  c.dim = width.dim;
  c.heads = width.heads;
  if (!random.one_in(4)) c.length = (c.length - 1) % 32 + 1;  // the others have a forward alone, or nothing
  c.bias = random.one_in(3);
  c.dy_gain = c.x_gain != 1 && c.dtype == DType::kFloat16 ? 0.125 : 1;
  return c;
}

PassCase random_cpu_pass_case(std::uint64_t seed) {
  PassCase c = random_pass_case(seed);
  Random random(seed + 3000017);
  const DType types[] = {DType::kFloat64, DType::kFloat32, DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  c.dtype = random.of(types);
  c.float32_residual = false;
  c.heads = random.below(5) + 1;
  c.dim = c.heads * (random.below(random.one_in(3) ? 40 : 16) + 1);
  if (random.one_in(3)) {
    const PassWidth width = random.of(kPassWidths);
    c.dim = width.dim;
    c.heads = width.heads;
  }
  if (!random.one_in(4)) c.length = (c.length - 1) % 32 + 1;
  c.length = std::min(c.length, 16384 / c.dim);  // what a thread's scratch holds
  while (c.outer[0] * c.outer[1] * c.outer[2] * c.length > 2000 && c.outer[1] > 1) c.outer[1] /= 2;
  c.bias = random.one_in(3);
  c.token_shift = random.one_in(3) ? random.below(8) : 0;
  c.dy_gain = c.x_gain != 1 && c.dtype == DType::kFloat16 ? 0.125 : 1;
  c.rotary = c.dim / c.heads % 2 == 0 && random.one_in(3);
  return c;
}

}  // namespace axial::kernels::testing
