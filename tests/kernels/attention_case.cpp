#include "tests/kernels/attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <sstream>

#include "kernels/cpu/convert.h"

namespace axial::kernels::testing {
namespace {

std::int64_t elements_of(const Case& c) { return lines_of(c) * c.length * c.heads * c.head_dim; }

double load(DType dtype, const Bytes& buffer, std::int64_t at) {
  const std::uint8_t* from = buffer.data() + at * static_cast<std::int64_t>(element_size(dtype));
  double f64;
  float f32;
  std::uint16_t u16;
  switch (dtype) {
    case DType::kFloat64:
      std::memcpy(&f64, from, 8);
      return f64;
    case DType::kFloat32:
      std::memcpy(&f32, from, 4);
      return f32;
    case DType::kBFloat16:
      std::memcpy(&u16, from, 2);
      return bfloat16_to_float(u16);
    case DType::kFloat16:
      std::memcpy(&u16, from, 2);
      return float16_to_float(u16);
  }
  return 0;
}

void store(DType dtype, Bytes& buffer, std::int64_t at, double value) {
  std::uint8_t* to = buffer.data() + at * static_cast<std::int64_t>(element_size(dtype));
  const float f32 = static_cast<float>(value);
  const std::uint16_t u16 = dtype == DType::kBFloat16 ? float_to_bfloat16(f32) : float_to_float16(f32);
  switch (dtype) {
    case DType::kFloat64:
      std::memcpy(to, &value, 8);
      return;
    case DType::kFloat32:
      std::memcpy(to, &f32, 4);
      return;
    case DType::kBFloat16:
    case DType::kFloat16:
      std::memcpy(to, &u16, 2);
      return;
  }
}

DType accumulator(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

// Calls body(element offset in the buffer) for [lines, L, heads, d] in order.
template <class Body>
void for_each(const Case& c, const Operand& operand, const Body& body) {
  const auto& s = operand.strides;
  for (std::int64_t i0 = 0; i0 < c.outer[0]; ++i0)
    for (std::int64_t i1 = 0; i1 < c.outer[1]; ++i1)
      for (std::int64_t i2 = 0; i2 < c.outer[2]; ++i2)
        for (std::int64_t t = 0; t < c.length; ++t)
          for (std::int64_t h = 0; h < c.heads; ++h) {
            const std::int64_t at = operand.offset + i0 * s.outer_stride[0] + i1 * s.outer_stride[1] +
                                    i2 * s.outer_stride[2] + t * s.token_stride + h * s.head_stride;
            for (std::int64_t x = 0; x < c.head_dim; ++x) body(at + x * s.channel_stride);
          }
}

// Fixed-seed standard normal numbers, the same on every platform (SplitMix64, Box-Muller).
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  double operator()() {
    const double u = uniform(), v = uniform();
    return std::sqrt(-2 * std::log(1 - u)) * std::cos(2 * std::numbers::pi * v);
  }

 private:
  double uniform() {
    state_ += 0x9E3779B97F4A7C15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  std::uint64_t state_;
};

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()(std::uint64_t n) {  // 0 .. n - 1
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return (state_ >> 33) % n;
  }
  template <class T, std::size_t n>
  T of(const T (&values)[n]) {
    return values[(*this)(n)];
  }

 private:
  std::uint64_t state_;
};

}  // namespace

std::string Case::describe() const {
  const char* layouts[] = {"contiguous", "qkv rows",   "qkv columns", "sliced",
                           "head first", "transposed", "reversed",    "expanded"};
  const auto layout = [&](Layout l) { return layouts[static_cast<int>(l)]; };
  std::ostringstream text;
  text << "outer " << outer[0] << "x" << outer[1] << "x" << outer[2] << " L " << length << " heads " << heads << " d "
       << head_dim << " " << name(dtype) << (math == Math::kTF32 ? " tf32" : "") << (causal ? " causal" : "")
       << (bias ? " bias" : "") << " dropout " << dropout << " gain " << gain << " scale "
       << (scale ? std::to_string(*scale) : "default") << " in " << layout(inputs) << " o " << layout(output)
       << " d_o " << layout(d_o) << " grads " << layout(gradients) << " shift " << shift << " wants " << want_dq
       << want_dk << want_dv << want_d_bias << " seed " << seed;
  return text.str();
}

std::int64_t lines_of(const Case& c) { return c.outer[0] * c.outer[1] * c.outer[2]; }

std::shared_ptr<Bytes> sentinel_buffer(std::int64_t elements, std::size_t element_bytes) {
  return std::make_shared<Bytes>(static_cast<std::size_t>(elements) * element_bytes, kSentinel);
}

std::vector<Operand> make_operands(const Case& c, Layout layout, int count) {
  const bool packed = layout == Layout::kQkvRows || layout == Layout::kQkvColumns;
  const std::int64_t *o = c.outer, length = c.length, heads = c.heads, d = c.head_dim;
  Operand first;
  BasicView<void*>& s = first.strides;
  std::int64_t step = 1, parts = packed ? 3 : 1;
  const auto next = [&](std::int64_t extent) {
    const std::int64_t stride = step;
    step *= extent;
    return stride;
  };
  // From the fastest extent outwards.
  if (layout == Layout::kTransposed) {
    s.token_stride = next(length);
    s.channel_stride = next(d);
    s.head_stride = next(heads);
  } else if (layout == Layout::kHeadFirst) {
    s.channel_stride = next(d);
    s.token_stride = next(length);
    s.head_stride = next(heads);
  } else {
    s.channel_stride = next(d);
    if (layout == Layout::kSliced) next(2);
    s.head_stride = next(heads);
    if (packed) next(3);
    if (layout != Layout::kQkvColumns) s.token_stride = next(length);
  }
  s.outer_stride[2] = next(o[2]);
  s.outer_stride[1] = next(o[1]);
  if (layout == Layout::kQkvColumns) s.token_stride = next(length);
  s.outer_stride[0] = next(o[0]);
  std::int64_t used = step;
  if (layout == Layout::kSliced) first.offset = d;
  if (layout == Layout::kReversed) {
    first.offset = (length - 1) * s.token_stride;
    s.token_stride = -s.token_stride;
  }
  if (layout == Layout::kExpanded) {
    s = {};
    s.channel_stride = 0;
    used = 1;
  }
  first.offset += kMargin + c.shift;
  std::vector<Operand> operands;
  for (int i = 0; i < count; ++i) {
    Operand operand = first;
    if (packed && i > 0) {
      operand.buffer = operands[0].buffer;
      operand.offset += i % parts * heads * d;
    } else {
      operand.buffer = sentinel_buffer(used + 2 * kMargin + c.shift, element_size(c.dtype));
    }
    operands.push_back(operand);
  }
  return operands;
}

std::vector<double> dense(const Case& c, const Operand& operand) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(elements_of(c)));
  for_each(c, operand, [&](std::int64_t at) { values.push_back(load(c.dtype, *operand.buffer, at)); });
  return values;
}

std::string check_sentinels(const Case& c, const char* what, const std::vector<const Operand*>& operands) {
  if (operands.empty()) return "";
  const std::size_t bytes = element_size(c.dtype);
  Bytes covered = *operands[0]->buffer;
  for (const Operand* operand : operands) {
    for_each(c, *operand, [&](std::int64_t at) { std::memset(covered.data() + at * bytes, kSentinel, bytes); });
  }
  const auto changed = std::find_if(covered.begin(), covered.end(), [](std::uint8_t b) { return b != kSentinel; });
  if (changed == covered.end()) return "";
  std::ostringstream text;
  text << what << ": wrote outside the view, element " << (changed - covered.begin()) / static_cast<long>(bytes)
       << " of " << covered.size() / bytes << "; ";
  return text.str();
}

std::vector<double> dense_accumulators(const Case& c, const Bytes& buffer) {
  const DType dtype = accumulator(c.dtype);
  std::vector<double> values(buffer.size() / element_size(dtype) - 2 * kMargin);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load(dtype, buffer, kMargin + static_cast<std::int64_t>(i));
  }
  return values;
}

std::string check_accumulator_sentinels(const Case& c, const char* what, const Bytes& buffer) {
  const auto margin = static_cast<std::ptrdiff_t>(kMargin * accumulator_size(c.dtype));
  const auto intact = [](std::uint8_t b) { return b == kSentinel; };
  if (std::all_of(buffer.begin(), buffer.begin() + margin, intact) &&
      std::all_of(buffer.end() - margin, buffer.end(), intact)) {
    return "";
  }
  return std::string(what) + ": wrote outside the array; ";
}

void set_values(const Case& c, Operand& operand, const std::vector<double>& values, std::vector<double>& reference) {
  std::size_t i = 0;
  for_each(c, operand, [&](std::int64_t at) { store(c.dtype, *operand.buffer, at, values[i++]); });
  reference = dense(c, operand);
}

Inputs make_inputs(const Case& c) {
  Inputs in;
  Normal normal(c.seed);
  std::vector<Operand> qkv = make_operands(c, c.inputs, 3);
  in.q = qkv[0];
  in.k = qkv[1];
  in.v = qkv[2];
  in.d_o = make_operands(c, c.d_o, 1)[0];
  ReferenceInput& r = in.reference;
  const auto fill = [&](Operand& operand, double deviation, std::vector<double>& values) {
    values.resize(static_cast<std::size_t>(elements_of(c)));
    for (double& value : values) value = deviation * normal();
    set_values(c, operand, std::vector<double>(values), values);
  };
  fill(in.q, c.gain, r.q);
  fill(in.k, c.gain, r.k);
  fill(in.v, 1, r.v);
  fill(in.d_o, 1, r.d_o);
  if (c.bias) {
    const DType dtype = accumulator(c.dtype);
    const std::int64_t n = std::max<std::int64_t>(c.heads * (2 * c.length - 1), 0);
    in.bias = sentinel_buffer(n, element_size(dtype));
    for (std::int64_t i = 0; i < n; ++i) {
      store(dtype, *in.bias, i, normal());
      r.bias.push_back(load(dtype, *in.bias, i));
    }
  }
  in.rng = std::make_shared<Bytes>(2 * sizeof(std::uint64_t));
  const std::uint64_t rng[2] = {c.rng_seed, c.rng_offset};
  std::memcpy(in.rng->data(), rng, sizeof(rng));
  r.lines = lines_of(c);
  r.length = c.length;
  r.heads = c.heads;
  r.head_dim = c.head_dim;
  r.scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim)));
  r.causal = c.causal;
  r.dropout = c.dropout;
  r.seed = c.rng_seed;
  r.offset = c.rng_offset;
  r.stream = c.stream;
  r.first_line = c.first_line;
  return in;
}

Case random_case(std::uint64_t seed) {
  Draw draw(seed * 7919 + 17);
  Case c;
  c.seed = seed;
  for (auto& extent : c.outer) extent = static_cast<std::int64_t>(draw(4)) + 1;
  const std::int64_t lengths[] = {1, 2, 5, 7, 8, 14, 16, 17, 28, 31, 32, 33, 48, 63, 64, 65, 80, 100, 129, 200};
  c.length = draw.of(lengths);
  c.heads = static_cast<std::int64_t>(draw(5)) + 1;
  const std::int64_t dims[] = {1, 2, 4, 8, 12, 16, 16, 16, 24, 32, 32, 40, 48, 64, 64, 80, 96, 128, 160, 192, 256};
  c.head_dim = draw.of(dims);
  const DType types[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  c.dtype = draw.of(types);
  if (c.dtype == DType::kFloat32 && draw(3) == 0) c.math = Math::kTF32;
  c.causal = draw(3) == 0;
  c.bias = draw(2) == 0;
  if (draw(3) == 0) c.dropout = static_cast<double>(draw(9) + 1) / 10;
  c.rng_seed = draw(1u << 30);
  c.rng_offset = draw(1000);
  c.stream = draw(100);
  c.first_line = static_cast<std::int64_t>(draw(1u << 20));
  if (draw(4) == 0) c.scale = (static_cast<double>(draw(200)) - 100) / 200;  // negative too
  if (draw(5) == 0) c.gain = 2;
  const Layout inputs[] = {Layout::kContiguous, Layout::kQkvRows,   Layout::kQkvRows,    Layout::kQkvColumns,
                           Layout::kSliced,     Layout::kHeadFirst, Layout::kTransposed, Layout::kReversed};
  c.inputs = draw.of(inputs);
  c.output = draw.of(inputs);
  c.gradients = draw.of(inputs);
  c.d_o = draw(6) == 0 ? Layout::kExpanded : draw.of(inputs);
  c.shift = draw(3) == 0 ? static_cast<std::int64_t>(draw(8)) : 0;
  if (draw(4) == 0) {
    c.want_dq = draw(2) == 0;
    c.want_dk = draw(2) == 0;
    c.want_dv = draw(2) == 0;
    c.want_d_bias = draw(2) == 0;
  }
  return c;
}

}  // namespace axial::kernels::testing
