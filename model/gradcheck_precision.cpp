// The narrower types against float64: the part of the gradient check that finite differences cannot do.
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/bridge.h"
#include "model/gradcheck_cases.h"
#include "model/mlp.h"
#include "model/reference.h"
#include "model/rotary.h"
#include "model/tolerance.h"

namespace axial {
namespace {

// Float32 GEMMs and kernels of this scope use TF32, or do not.
class TF32Scope {
 public:
  explicit TF32Scope(bool allow) : before_(at::globalContext().allowTF32CuBLAS()) {
    at::globalContext().setAllowTF32CuBLAS(allow);
  }
  ~TF32Scope() { at::globalContext().setAllowTF32CuBLAS(before_); }
  TF32Scope(const TF32Scope&) = delete;
  TF32Scope& operator=(const TF32Scope&) = delete;

 private:
  bool before_;
};

struct Narrow {
  at::ScalarType type;
  bool tf32;
  const char* name;
  bool float32_residual = false;
  at::ScalarType stored() const { return float32_residual ? at::kFloat : type; }  // of x, y, dy and dx
  at::ScalarType arithmetic() const { return float32_residual ? type : at::ScalarType::Undefined; }
};

struct Shape {
  std::int64_t batch, height, width, dim, heads;
};

// A layer on x[B, H, W, D] and its parameters.
using Layer = std::function<at::Tensor(const at::Tensor&, const std::vector<at::Tensor>&)>;

struct Evaluated {
  at::Tensor branch;              // y - x
  std::vector<at::Tensor> grads;  // dx - dy, then one for each parameter; float64
};

// Runs a layer in `type` on inputs given in float64 that `type` holds exactly; parameters stay wider than 16 bits.
Evaluated evaluate(const Layer& layer, const at::Tensor& x64, const std::vector<at::Tensor>& parameters64,
                   const at::Tensor& g64, at::ScalarType type) {
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> leaves{x64.to(type).requires_grad_()}, parameters;
  for (const at::Tensor& p : parameters64) {
    parameters.push_back(p.to(wide, false, true).requires_grad_());
    leaves.push_back(parameters.back());
  }
  const at::Tensor y = layer(leaves[0], parameters);
  Evaluated e;
  e.branch = y.detach().to(at::kDouble) - x64;
  e.grads = torch::autograd::grad({y}, leaves, {g64.to(type)});
  for (at::Tensor& g : e.grads) g = g.to(at::kDouble);
  e.grads[0] = e.grads[0] - g64;
  return e;
}

struct LayerCase {
  std::string name;
  Layer ours, reference;
  std::vector<std::pair<const char*, at::Tensor>> parameters;  // float64
  std::int64_t batch, height, width, dim;
};

// `shrink`: x scaled by 2^-12 and eps (the layer's business) by 2^-24, which the norm does not notice; the residual
// vanishes beside the branch.
void check_layer_in(Draw& draw, const LayerCase& c, const Narrow& n, bool shrink,
                    const std::function<void(GradcheckResult)>& report) {
  const TF32Scope scope(n.tf32);
  std::vector<at::Tensor> parameters;
  for (const auto& entry : c.parameters) parameters.push_back(entry.second.to(at::kFloat).to(at::kDouble));
  const auto exact = [&](const at::Tensor& t) { return t.to(n.stored()).to(at::kDouble); };
  const at::Tensor x = exact(draw.normal({c.batch, c.height, c.width, c.dim}, shrink ? std::ldexp(1.0, -12) : 1.0));
  const at::Tensor g = exact(draw.normal(x.sizes()));
  const Evaluated ours = evaluate(c.ours, x, parameters, g, n.stored());
  const Evaluated composed = evaluate(c.reference, x, parameters, g, n.stored());
  const Evaluated truth = evaluate(c.reference, x, parameters, g, at::kDouble);

  const std::string name = std::string(n.name) + (n.float32_residual ? " with a float32 residual " : " ") + c.name +
                           (shrink ? ", x 2^-12" : "");
  const auto compare = [&](const std::string& quantity, const at::Tensor& out, const at::Tensor& ops,
                           const at::Tensor& ref, Quantity kind) {
    const double allowed = tolerance(n.type, n.tf32, kind), error = relative_error(out, ref);
    report({name, "float64 reference", quantity, error, allowed, error <= allowed, relative_error(ops, ref)});
    if (at::isReducedFloatingType(n.type) && kind != Quantity::kParameterGradient) {
      const double lean = relative_bias(out, ref);
      report({name, "bias", quantity, lean, kBiasTolerance, lean <= kBiasTolerance, relative_bias(ops, ref)});
    }
  };
  compare("y - x", ours.branch, composed.branch, truth.branch, Quantity::kBranch);
  compare("dx - dy", ours.grads[0], composed.grads[0], truth.grads[0], Quantity::kInputGradient);
  for (std::size_t i = 0; i < c.parameters.size(); ++i) {
    compare(std::string("d ") + c.parameters[i].first, ours.grads[i + 1], composed.grads[i + 1], truth.grads[i + 1],
            Quantity::kParameterGradient);
  }
}

std::string sizes_of(const Shape& s) {
  return "[" + std::to_string(s.batch) + ", " + std::to_string(s.height) + ", " + std::to_string(s.width) + ", " +
         std::to_string(s.dim) + "]";
}

// What a pass, or an MLP, may have beside its projections.
struct Parts {
  bool bias = true, rotary = false, layer_scale = false;
  double projection_dropout = 0;
  bool tables = false, convolution = false;  // of a pass; of an MLP
};

void check_pass_in(Draw& draw, const Shape& s, Axis axis, const Narrow& n, bool shrink,
                   const std::function<void(GradcheckResult)>& report, const Parts& parts = {}) {
  const std::int64_t length = axis == Axis::kRow ? s.width : s.height;
  const PassParameters p = random_parameters(draw, s.dim, s.heads, 2 * length - 1);
  PassOptions options;
  options.axis = axis;
  options.heads = s.heads;
  options.eps = shrink ? std::ldexp(1e-5, -24) : 1e-5;
  options.projection_dropout = parts.projection_dropout;
  options.arithmetic = n.arithmetic();
  if (parts.projection_dropout > 0) options.random = fixed_state(draw);
  const at::Tensor table =  // in float64
      parts.rotary ? rotary_table(length, s.dim / s.heads, 100, p.out_bias.options()) : at::Tensor();
  const auto with = [options, table, parts](auto pass) {
    return [=](const at::Tensor& x, const std::vector<at::Tensor>& q) {
      PassOptions o = options;
      if (table.defined()) o.rotary = table.to(accumulate_type(x.scalar_type()));
      PassParameters given{q[0], q[1], q[2], q[3], q[4], {}, {}};
      std::size_t next = 5;
      if (parts.bias) given.bias = q[next++];
      if (parts.layer_scale) given.layer_scale = q[next++];
      if (parts.tables) given.relative = {q[next], q[next + 1], q[next + 2]};
      return pass(x, given, o);
    };
  };
  std::vector<std::pair<const char*, at::Tensor>> parameters = {{"norm_weight", p.norm_weight},
                                                                {"norm_bias", p.norm_bias},
                                                                {"qkv_weight", p.qkv_weight},
                                                                {"out_weight", p.out_weight},
                                                                {"out_bias", p.out_bias}};
  if (parts.bias) parameters.emplace_back("bias", p.bias);
  if (parts.layer_scale) parameters.emplace_back("layer_scale", draw.normal({s.dim}, 0.5, 1));
  if (parts.tables) {
    const RelativeTables r = random_tables(draw, 2 * length - 1, s.dim / s.heads);
    for (const auto& [name, t] : {std::pair("r_q", r.q), std::pair("r_k", r.k), std::pair("r_v", r.v)}) {
      parameters.emplace_back(name, t);
    }
  }
  check_layer_in(
      draw,
      {std::string("pass ") + (axis == Axis::kRow ? "row " : "column ") + sizes_of(s) +
           " h=" + std::to_string(s.heads) + (parts.rotary ? ", rotary" : "") +
           (parts.layer_scale ? ", layer scale" : "") + (parts.projection_dropout > 0 ? ", projection dropout" : "") +
           (parts.tables ? ", position-sensitive" : ""),
       with(axial_pass), with(reference_pass), parameters, s.batch, s.height, s.width, s.dim},
      n, shrink, report);
}

// The MLP of `hidden` channels, convolved or not; with `depth` the branch of every second sample is dropped.
void check_mlp_in(Draw& draw, const Shape& s, std::int64_t hidden, bool depth, const Narrow& n, bool shrink,
                  const std::function<void(GradcheckResult)>& report, const Parts& parts = {}) {
  const double up = 1.5 / std::sqrt(static_cast<double>(s.dim)), down = 1.5 / std::sqrt(static_cast<double>(hidden));
  MlpOptions options;
  options.eps = shrink ? std::ldexp(1e-5, -24) : 1e-5;
  if (depth) {
    options.sample_scale = at::arange(s.batch, at::dtype(at::kFloat).device(draw.device())).remainder(2).mul(1.25);
  }
  options.arithmetic = n.arithmetic();
  options.dropout = parts.projection_dropout;
  if (parts.projection_dropout > 0) options.random = fixed_state(draw);
  const auto with = [options, parts](Backend backend) {
    return [=](const at::Tensor& x, const std::vector<at::Tensor>& q) {
      MlpOptions o = options;
      o.backend = backend;
      MlpParameters given{q[0], q[1], q[2], q[3], q[4], q[5], {}};
      std::size_t next = 6;
      if (parts.layer_scale) given.layer_scale = q[next++];
      if (parts.convolution) {
        given.conv_weight = q[next];
        given.conv_bias = q[next + 1];
      }
      return mlp(x, given, o);
    };
  };
  std::vector<std::pair<const char*, at::Tensor>> parameters = {{"norm_weight", draw.normal({s.dim}, 0.2, 1)},
                                                                {"norm_bias", draw.normal({s.dim}, 0.2)},
                                                                {"up_weight", draw.normal({hidden, s.dim}, up)},
                                                                {"up_bias", draw.normal({hidden}, 0.2)},
                                                                {"down_weight", draw.normal({s.dim, hidden}, down)},
                                                                {"down_bias", draw.normal({s.dim}, 0.2)}};
  if (parts.layer_scale) parameters.emplace_back("layer_scale", draw.normal({s.dim}, 0.5, 1));
  if (parts.convolution) {
    parameters.emplace_back("conv_weight", draw.normal({hidden, 1, 3, 3}, 0.3));
    parameters.emplace_back("conv_bias", draw.normal({hidden}, 0.2));
  }
  check_layer_in(
      draw,
      {"mlp " + sizes_of(s) + " hidden " + std::to_string(hidden) + (depth ? ", stochastic depth" : "") +
           (parts.layer_scale ? ", layer scale" : "") + (parts.projection_dropout > 0 ? ", projection dropout" : "") +
           (parts.convolution ? ", convolution" : ""),
       with(Backend::kFused), with(Backend::kReference), parameters, s.batch, s.height, s.width, s.dim},
      n, shrink, report);
}

}  // namespace

std::vector<GradcheckResult> check_block(const BlockCase& c, at::Device device, std::uint64_t seed) {
  const at::AutoGradMode enable(true);
  std::vector<GradcheckResult> results;
  Draw draw(seed, device);
  const Narrow n{c.type, c.tf32, at::isReducedFloatingType(c.type) ? c10::toString(c.type) : "float32",
                 c.float32_residual && at::isReducedFloatingType(c.type)};
  const Shape s{c.batch, c.height, c.width, c.dim, c.heads};
  const auto report = [&](GradcheckResult result) {
    // A lean of a thousandth is a matter of chance in so few tokens.
    if (result.method != "bias") results.push_back(std::move(result));
  };
  const Parts parts{c.relative_bias, c.rotary, c.layer_scale, c.projection_dropout, c.position_sensitive, c.mlp_conv};
  for (const Axis axis : {Axis::kRow, Axis::kColumn}) check_pass_in(draw, s, axis, n, false, report, parts);
  check_mlp_in(draw, s, c.hidden, false, n, false, report, parts);
  return results;
}

void check_precision(Draw& draw, const std::function<void(GradcheckResult)>& report) {
  const bool cuda = draw.device().is_cuda();
  std::vector<Narrow> types{{at::kFloat, false, "float32"}};
  if (cuda) types.push_back({at::kFloat, true, "tf32"});
  types.push_back({at::kBFloat16, false, "bfloat16"});
  types.push_back({at::kHalf, false, "float16"});
  std::vector<Shape> shapes{{2, 14, 14, 64, 4}, {16, 5, 9, 48, 3}};  // large enough that a lean of 1e-3 is no chance
  if (cuda) {
    for (const Shape& s : {Shape{2, 28, 28, 64, 4}, {2, 32, 32, 64, 4}, {1, 40, 70, 128, 2}, {1, 50, 90, 96, 3}})
      shapes.push_back(s);
  }
  for (const Narrow& n : types) {
    for (const Shape& s : shapes) {
      for (const Axis axis : {Axis::kRow, Axis::kColumn}) check_pass_in(draw, s, axis, n, false, report);
    }
    check_pass_in(draw, shapes[0], Axis::kColumn, n, false, report, {false, true, true, 0.1});
    check_pass_in(draw, shapes[0], Axis::kRow, n, false, report, {true, false, false, 0, true});
    check_pass_in(draw, shapes[0], Axis::kColumn, n, false, report, {false, true, true, 0.1, true});
    // float16 has no exponents left for that.
    if (n.type != at::kHalf) check_pass_in(draw, shapes[0], Axis::kRow, n, true, report);
    if (!at::isReducedFloatingType(n.type)) continue;
    Narrow wide = n;
    wide.float32_residual = true;
    check_pass_in(draw, shapes[0], Axis::kRow, wide, false, report, {false});
    check_pass_in(draw, shapes[1], Axis::kColumn, wide, false, report, {true, true, true, 0.1});
    check_pass_in(draw, shapes[0], Axis::kColumn, wide, false, report, {false, false, false, 0, true});
  }
  // Hidden channels in one, several and half-filled parts of the kernels; a width that they do not know.
  std::vector<std::pair<Shape, std::int64_t>> mlps{{{4, 14, 14, 64, 1}, 128}, {{16, 5, 9, 40, 1}, 100}};
  if (cuda) {
    for (const auto& one : {std::pair(Shape{4, 28, 28, 64, 1}, std::int64_t{256}), {{4, 14, 14, 128, 1}, 256},
                            {{8, 9, 11, 96, 1}, 200}, {{8, 9, 11, 32, 1}, 64}}) {
      mlps.push_back(one);
    }
  }
  for (const Narrow& n : types) {
    for (const auto& [s, hidden] : mlps) check_mlp_in(draw, s, hidden, hidden == 128, n, false, report);
    for (const double dropout : {0.0, 0.1}) {
      check_mlp_in(draw, mlps[0].first, mlps[0].second, true, n, false, report, {false, false, true, dropout});
    }
    check_mlp_in(draw, mlps[0].first, mlps[0].second, true, n, false, report, {false, false, false, 0, false, true});
    check_mlp_in(draw, mlps[1].first, mlps[1].second, true, n, false, report, {false, false, true, 0.1, false, true});
    if (n.type != at::kHalf) check_mlp_in(draw, mlps[0].first, mlps[0].second, false, n, true, report);
    if (!at::isReducedFloatingType(n.type)) continue;
    Narrow wide = n;
    wide.float32_residual = true;
    for (const auto& [s, hidden] : mlps) check_mlp_in(draw, s, hidden, hidden == 128, wide, false, report);
    check_mlp_in(draw, mlps[0].first, mlps[0].second, true, wide, false, report, {false, false, true, 0.1});
    check_mlp_in(draw, mlps[0].first, mlps[0].second, true, wide, false, report,
                 {false, false, false, 0, false, true});
  }
}

}  // namespace axial
