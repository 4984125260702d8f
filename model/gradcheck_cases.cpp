#include "model/gradcheck_cases.h"

#include <cmath>
#include <memory>

#include <ATen/CPUGeneratorImpl.h>

#include "model/attention.h"
#include "model/classifier.h"
#include "model/core.h"
#include "model/reference.h"
#include "model/rotary.h"

namespace axial {

Draw::Draw(std::uint64_t seed, at::Device device)
    : generator_(at::detail::createCPUGenerator(seed)), device_(device) {}

at::Tensor Draw::normal(at::IntArrayRef shape, double std, double mean) {
  return at::randn(shape, generator_, at::dtype(at::kDouble)).mul_(std).add_(mean).to(device_);
}

std::int64_t Draw::index(std::int64_t n) {
  return at::randint(n, {1}, generator_, at::dtype(at::kLong)).item<std::int64_t>();
}

at::Tensor incoming_gradient(Draw& draw, at::IntArrayRef shape, Incoming incoming) {
  if (incoming == Incoming::kExpanded) {
    return at::ones({}, at::dtype(at::kDouble).device(draw.device())).expand(shape);  // all strides 0
  }
  at::Tensor g = draw.normal(shape);
  const std::int64_t last = g.dim() - 1;
  switch (incoming) {
    case Incoming::kTransposed:
      return g.transpose(0, last).contiguous().transpose(0, last);
    case Incoming::kSliced:
      return at::cat({g, g}, last).slice(last, 0, g.size(last));
    default:
      return g;
  }
}

RandomState fixed_state(Draw& draw) {
  return {at::tensor({draw.index(1 << 30), draw.index(1 << 30)}, at::dtype(at::kLong)).to(draw.device()),
          draw.index(1000)};
}

PassParameters random_parameters(Draw& draw, std::int64_t dim, std::int64_t heads, std::int64_t bias_length) {
  const double fan_in = 1 / std::sqrt(static_cast<double>(dim));
  PassParameters p;
  p.norm_weight = draw.normal({dim}, 0.2, 1);
  p.norm_bias = draw.normal({dim}, 0.2);
  p.qkv_weight = draw.normal({3 * dim, dim}, 1.5 * fan_in);
  p.out_weight = draw.normal({dim, dim}, 1.5 * fan_in);
  p.out_bias = draw.normal({dim}, 0.2);
  if (bias_length > 0) p.bias = draw.normal({heads, bias_length}, 0.5);
  return p;
}

RelativeTables random_tables(Draw& draw, std::int64_t offsets, std::int64_t head_dim) {
  const auto table = [&] { return draw.normal({offsets, head_dim}, 0.7); };
  return {table(), table(), table()};
}

namespace {

at::Tensor make_leaf(const at::Tensor& t) { return t.detach().requires_grad_(); }

Leaf pair(std::string name, const at::Tensor& t) { return {std::move(name), make_leaf(t), make_leaf(t)}; }

std::string text(at::IntArrayRef shape) {
  std::string s = "[";
  for (const std::int64_t n : shape) s += (s.size() > 1 ? ", " : "") + std::to_string(n);
  return s + "]";
}

const char* axis_name(Axis axis) { return axis == Axis::kRow ? "row" : "column"; }

// The bare core on q, k, v[B, H, W, h, d].
struct CoreCase {
  std::vector<std::int64_t> shape;
  Axis axis;
  bool bias = false, causal = false, strided = false;
  double dropout = 0, scale = 0;
  Incoming incoming = Incoming::kContiguous;
};

GradcheckProblem core_problem(Draw& draw, const CoreCase& c) {
  GradcheckProblem problem;
  problem.name = std::string("core ") + axis_name(c.axis) + " " + text(c.shape) + (c.bias ? ", bias" : "") +
                 (c.causal ? ", causal" : "") + (c.strided ? ", strided" : "") + (c.dropout > 0 ? ", dropout" : "");
  problem.incoming = c.incoming;
  const auto input = [&](const char* name) {
    at::Tensor t = draw.normal(c.shape);
    if (c.strided) t = t.transpose(1, 4).contiguous().transpose(1, 4);  // channels outermost but one
    problem.leaves.push_back(pair(name, t));
  };
  input("q");
  input("k");
  input("v");
  const std::int64_t length = c.shape[c.axis == Axis::kRow ? 2 : 1];
  if (c.bias) problem.leaves.push_back(pair("bias", draw.normal({c.shape[3], 2 * length - 1}, 0.5)));
  CoreOptions options;
  options.axis = c.axis;
  options.scale = c.scale;
  options.causal = c.causal;
  options.dropout = c.dropout;
  options.stream = 5;
  if (c.dropout > 0) options.random = fixed_state(draw);
  const auto leaves = problem.leaves;
  problem.fused = [leaves, options] {
    return axial_attention_core(leaves[0].fused, leaves[1].fused, leaves[2].fused,
                                leaves.size() > 3 ? leaves[3].fused : at::Tensor(), options);
  };
  problem.reference = [leaves, options] {
    return reference_attention_core(leaves[0].reference, leaves[1].reference, leaves[2].reference,
                                    leaves.size() > 3 ? leaves[3].reference : at::Tensor(), options);
  };
  return problem;
}

// One pass on x[B, H, W, D].
struct PassCase {
  std::vector<std::int64_t> shape;
  std::int64_t heads;
  Axis axis;
  bool bias = false, strided = false;
  double dropout = 0, drop_path = 0;
  Incoming incoming = Incoming::kContiguous;
  bool rotary = false, layer_scale = false;
  double projection_dropout = 0;
  bool tables = false;
};

GradcheckProblem pass_problem(Draw& draw, const PassCase& c) {
  GradcheckProblem problem;
  problem.name = std::string("pass ") + axis_name(c.axis) + " " + text(c.shape) + " h=" + std::to_string(c.heads) +
                 (c.bias ? ", bias" : "") + (c.strided ? ", strided" : "") + (c.dropout > 0 ? ", dropout" : "") +
                 (c.drop_path > 0 ? ", depth" : "") + (c.rotary ? ", rotary" : "") +
                 (c.layer_scale ? ", layer scale" : "") + (c.projection_dropout > 0 ? ", projection dropout" : "") +
                 (c.tables ? ", position-sensitive" : "");
  problem.incoming = c.incoming;
  at::Tensor x = draw.normal(c.shape);
  if (c.strided) x = x.transpose(0, 3).contiguous().transpose(0, 3);
  const std::int64_t length = c.shape[c.axis == Axis::kRow ? 2 : 1];
  const PassParameters p = random_parameters(draw, c.shape[3], c.heads, c.bias ? 2 * length - 1 : 0);
  problem.leaves = {pair("x", x),
                    pair("norm_weight", p.norm_weight),
                    pair("norm_bias", p.norm_bias),
                    pair("qkv_weight", p.qkv_weight),
                    pair("out_weight", p.out_weight),
                    pair("out_bias", p.out_bias)};
  if (c.bias) problem.leaves.push_back(pair("bias", p.bias));
  if (c.layer_scale) problem.leaves.push_back(pair("layer_scale", draw.normal({c.shape[3]}, 0.5, 1)));
  if (c.tables) {
    const RelativeTables tables = random_tables(draw, 2 * length - 1, c.shape[3] / c.heads);
    problem.leaves.push_back(pair("r_q", tables.q));
    problem.leaves.push_back(pair("r_k", tables.k));
    problem.leaves.push_back(pair("r_v", tables.v));
  }
  PassOptions options;
  options.axis = c.axis;
  options.heads = c.heads;
  options.dropout = c.dropout;
  options.projection_dropout = c.projection_dropout;
  options.stream = 9;
  if (c.dropout > 0 || c.projection_dropout > 0) options.random = fixed_state(draw);
  if (c.drop_path > 0) {  // one sample dropped, the others scaled
    options.sample_scale = at::full({c.shape[0]}, 1 / (1 - c.drop_path), x.options());
    options.sample_scale.select(0, 0).zero_();
  }
  if (c.rotary) options.rotary = rotary_table(length, c.shape[3] / c.heads, 30, x.options());
  const auto leaves = problem.leaves;
  const auto parameters = [leaves, c](at::Tensor Leaf::*side) {
    PassParameters q{leaves[1].*side, leaves[2].*side, leaves[3].*side, leaves[4].*side, leaves[5].*side, {}, {}};
    std::size_t next = 6;
    if (c.bias) q.bias = leaves[next++].*side;
    if (c.layer_scale) q.layer_scale = leaves[next++].*side;
    if (c.tables) q.relative = {leaves[next].*side, leaves[next + 1].*side, leaves[next + 2].*side};
    return q;
  };
  problem.fused = [=] { return axial_pass(leaves[0].fused, parameters(&Leaf::fused), options); };
  problem.reference = [=] { return reference_pass(leaves[0].reference, parameters(&Leaf::reference), options); };
  return problem;
}

// A module in both backends on one set of parameters, as a function of its input and of all of them.
template <class Module, class Make>
GradcheckProblem module_problem(Draw& draw, const std::string& name, Make make, const at::Tensor& x) {
  GradcheckProblem problem;
  problem.name = name;
  problem.elements = 2;
  Module fused = make(Backend::kFused), reference = make(Backend::kReference);
  fused->to(draw.device(), at::kDouble);
  reference->to(draw.device(), at::kDouble);
  problem.leaves.push_back(pair("x", x));
  auto twins = reference->named_parameters();
  for (auto& item : fused->named_parameters()) {
    at::Tensor p = item.value(), twin = twins[item.key()];
    {
      // Not the initial values, which torch's own generator drew: a seed is to give the same check. Branches of the
      // residual's size; norm weights around one.
      const at::NoGradGuard no_grad;
      const bool gain = p.dim() == 1 && (item.key().ends_with("weight") || item.key().ends_with("_scale"));
      const double fan_in = static_cast<double>(p.dim() > 1 ? p.numel() / p.size(0) : 25);
      p.copy_(draw.normal(p.sizes(), 1 / std::sqrt(fan_in), gain ? 1 : 0));
    }
    twin.set_data(p.detach());  // one storage
    problem.leaves.push_back({item.key(), p, twin});
  }
  const RandomState random = fixed_state(draw);
  const Leaf input = problem.leaves[0];
  problem.fused = [=]() mutable { return fused->forward(input.fused, random); };
  problem.reference = [=]() mutable { return reference->forward(input.reference, random); };
  return problem;
}

// Plain scores and branches; or all options, without `tables` or with them.
GradcheckProblem layer_problem(Draw& draw, bool all, bool tables) {
  AxialAttentionOptions o;
  o.dim = 12;
  o.heads = 3;
  o.first = Axis::kColumn;
  o.dropout = 0.2;
  o.drop_path = 0.25;
  o.relative_bias = true;
  o.position_sensitive = tables;
  o.height = 3;
  o.width = 5;
  o.rotary = all;
  o.layer_scale = all ? 1 : 0;
  o.projection_dropout = all ? 0.3 : 0;
  return module_problem<AxialAttention>(
      draw,
      std::string("layer [4, 3, 5, 12] h=3, ") + (all ? "all options" : "plain scores and branches") +
          (tables ? ", position-sensitive" : ""),
      [=](Backend backend) mutable {
        o.backend = backend;
        return AxialAttention(o);
      },
      draw.normal({4, 3, 5, 12}));
}

// A block whose MLP convolves; plain branches, or all options of them.
GradcheckProblem convolved_problem(Draw& draw, std::int64_t height, std::int64_t width, bool all) {
  AxialBlockOptions o;
  o.attention.dim = 8;
  o.attention.heads = 2;
  o.attention.drop_path = 0.25;
  o.attention.layer_scale = all ? 1 : 0;
  o.attention.projection_dropout = all ? 0.3 : 0;
  o.mlp_conv = true;
  const std::vector<std::int64_t> shape{3, height, width, 8};
  return module_problem<AxialBlock>(
      draw, "block " + text(shape) + " h=2, convolution in the MLP" + (all ? ", all options" : ""),
      [=](Backend backend) mutable {
        o.attention.backend = backend;
        return AxialBlock(o);
      },
      draw.normal(shape));
}

// Smooth activations and no max pooling: finite differences would fall over the edges of both.
GradcheckProblem classifier_problem(Draw& draw, Stem stem) {
  AxialClassifierOptions o;
  o.channels = 2;
  o.image_height = 9;
  o.image_width = 7;
  o.classes = 3;
  o.stem = stem;
  o.patch_size = 2;
  o.stem_activation = Activation::kGelu;
  o.dim = {8, 12};
  o.heads = {2, 3};
  o.depth = {1, 1};
  o.relative_bias = stem == Stem::kConv;
  o.rotary = stem == Stem::kPatch;
  o.layer_scale = stem == Stem::kConv ? 1 : 0;
  o.projection_dropout = stem == Stem::kConv ? 0.3 : 0;
  o.attention_dropout = 0.2;
  o.drop_path = 0.2;
  o.head_dropout = 0.2;
  return module_problem<AxialClassifier>(
      draw, std::string("classifier, two stages, ") + (stem == Stem::kConv ? "convolutions" : "patches"),
      [=](Backend backend) mutable {
        o.backend = backend;
        return AxialClassifier(o);
      },
      draw.normal({4, 2, 9, 7}));
}

}  // namespace

std::vector<GradcheckProblem> gradcheck_problems(Draw& draw) {
  constexpr Axis row = Axis::kRow, column = Axis::kColumn;
  using In = Incoming;
  std::vector<GradcheckProblem> problems;
  for (const CoreCase& c : std::vector<CoreCase>{
           {{2, 3, 5, 2, 4}, row},
           {{2, 3, 5, 2, 4}, column, true, false, true, 0.2, 0, In::kExpanded},
           {{1, 2, 7, 3, 5}, row, true, true, true, 0.2, 0.3, In::kTransposed},
           {{2, 9, 1, 1, 3}, column, false, true, false, 0, 0, In::kSliced},
           {{3, 2, 1, 2, 1}, row, true, false, false, 0, 0, In::kSliced},
           {{1, 1, 33, 1, 20}, row, true, false, false, 0.2, 0, In::kTransposed},
           {{1, 65, 1, 1, 63}, column, false, false, true, 0, 0, In::kContiguous},
       }) {
    problems.push_back(core_problem(draw, c));
  }
  for (const PassCase& c : std::vector<PassCase>{
           {{2, 3, 5, 12}, 3, row},
           {{2, 3, 5, 12}, 3, column, true, true, 0.2, 0, In::kExpanded},
           {{3, 5, 4, 8}, 2, row, true, false, 0.2, 0.4, In::kTransposed},
           {{3, 5, 4, 8}, 1, column, false, false, 0, 0.4, In::kSliced},
           {{2, 3, 1, 6}, 2, row, true, false, 0, 0, In::kContiguous},
           {{2, 1, 17, 20}, 4, row, false, true, 0.2, 0, In::kSliced},
           {{3, 1, 5, 8}, 2, row, true, false, 0.2, 0.4, In::kSliced},  // so few lines are composed on a CPU, too
           {{2, 3, 5, 12}, 3, row, false, false, 0, 0, In::kTransposed, true},
           {{3, 5, 4, 12}, 2, column, true, true, 0.2, 0.4, In::kExpanded, true},
           {{2, 3, 5, 12}, 3, column, false, false, 0, 0, In::kSliced, false, true},
           {{3, 5, 4, 12}, 2, row, true, true, 0.2, 0.4, In::kTransposed, true, true},
           {{2, 3, 5, 20}, 2, row, false, false, 0, 0, In::kSliced, false, false, 0.3},
           {{3, 5, 4, 12}, 2, column, true, true, 0.2, 0.4, In::kExpanded, true, true, 0.3},
           {{2, 3, 5, 12}, 3, row, false, false, 0, 0, In::kTransposed, false, false, 0, true},
           {{3, 5, 4, 8}, 2, column, true, true, 0.2, 0.4, In::kExpanded, false, false, 0, true},
           {{2, 3, 1, 6}, 3, row, false, false, 0.2, 0, In::kSliced, true, true, 0.3, true},
       }) {
    problems.push_back(pass_problem(draw, c));
  }
  problems.push_back(layer_problem(draw, false, false));
  for (const bool tables : {false, true}) problems.push_back(layer_problem(draw, true, tables));
  problems.push_back(convolved_problem(draw, 3, 5, false));
  problems.push_back(convolved_problem(draw, 1, 2, true));
  problems.push_back(classifier_problem(draw, Stem::kPatch));
  problems.push_back(classifier_problem(draw, Stem::kConv));
  return problems;
}

}  // namespace axial
