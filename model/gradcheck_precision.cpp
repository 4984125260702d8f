// The narrower types against float64: the part of the gradient check that finite differences cannot do.
#include <array>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/gradcheck_cases.h"
#include "model/reference.h"
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
};

struct Shape {
  std::int64_t batch, height, width, dim, heads;
};

using Pass = at::Tensor (*)(const at::Tensor&, const PassParameters&, const PassOptions&);

struct Evaluated {
  at::Tensor branch;              // y - x
  std::vector<at::Tensor> grads;  // dx - dy, then one for each parameter; float64
};

// Runs a pass in `type` on inputs given in float64 that `type` holds exactly; parameters stay wider than 16 bits.
Evaluated evaluate(Pass pass, const at::Tensor& x64, const std::vector<at::Tensor>& parameters64,
                   const at::Tensor& g64, const PassOptions& options, at::ScalarType type) {
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> leaves{x64.to(type).requires_grad_()};
  for (const at::Tensor& p : parameters64) leaves.push_back(p.to(wide, false, true).requires_grad_());
  const PassParameters p{leaves[1], leaves[2], leaves[3], leaves[4], leaves[5], leaves[6]};
  const at::Tensor y = pass(leaves[0], p, options);
  Evaluated e;
  e.branch = y.detach().to(at::kDouble) - x64;
  e.grads = torch::autograd::grad({y}, leaves, {g64.to(type)});
  for (at::Tensor& g : e.grads) g = g.to(at::kDouble);
  e.grads[0] = e.grads[0] - g64;
  return e;
}

// `shrink`: x scaled by 2^-12 and eps by 2^-24, which the norm does not notice; the residual vanishes beside the
// branch.
void check_pass_in(Draw& draw, const Shape& s, Axis axis, const Narrow& n, bool shrink,
                   const std::function<void(GradcheckResult)>& report) {
  const TF32Scope scope(n.tf32);
  const std::int64_t length = axis == Axis::kRow ? s.width : s.height;
  const PassParameters p = random_parameters(draw, s.dim, s.heads, 2 * length - 1);
  std::vector<at::Tensor> parameters{p.norm_weight, p.norm_bias, p.qkv_weight, p.out_weight, p.out_bias, p.bias};
  for (at::Tensor& t : parameters) t = t.to(at::kFloat).to(at::kDouble);
  const auto exact = [&](const at::Tensor& t) { return t.to(n.type).to(at::kDouble); };
  const at::Tensor x = exact(draw.normal({s.batch, s.height, s.width, s.dim}, shrink ? std::ldexp(1.0, -12) : 1.0));
  const at::Tensor g = exact(draw.normal(x.sizes()));
  PassOptions options;
  options.axis = axis;
  options.heads = s.heads;
  options.eps = shrink ? std::ldexp(1e-5, -24) : 1e-5;
  const Evaluated ours = evaluate(axial_pass, x, parameters, g, options, n.type);
  const Evaluated composed = evaluate(reference_pass, x, parameters, g, options, n.type);
  const Evaluated truth = evaluate(reference_pass, x, parameters, g, options, at::kDouble);

  const std::string name = std::string(n.name) + " pass " + (axis == Axis::kRow ? "row" : "column") + " [" +
                           std::to_string(s.batch) + ", " + std::to_string(s.height) + ", " +
                           std::to_string(s.width) + ", " + std::to_string(s.dim) + "] h=" + std::to_string(s.heads) +
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
  constexpr std::array names{"norm_weight", "norm_bias", "qkv_weight", "out_weight", "out_bias", "bias"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    compare(std::string("d ") + names[i], ours.grads[i + 1], composed.grads[i + 1], truth.grads[i + 1],
            Quantity::kParameterGradient);
  }
}

}  // namespace

void check_precision(Draw& draw, const std::function<void(GradcheckResult)>& report) {
  const bool cuda = draw.device().is_cuda();
  std::vector<Narrow> types{{at::kFloat, false, "float32"}};
  if (cuda) types.push_back({at::kFloat, true, "tf32"});
  types.push_back({at::kBFloat16, false, "bfloat16"});
  types.push_back({at::kHalf, false, "float16"});
  std::vector<Shape> shapes{{2, 14, 14, 64, 4}, {16, 5, 9, 48, 3}};  // large enough that a lean of 1e-3 is no chance
  if (cuda) {
    for (const Shape& s : {Shape{2, 28, 28, 64, 4}, {2, 32, 32, 64, 4}, {1, 40, 70, 128, 2}}) shapes.push_back(s);
  }
  for (const Narrow& n : types) {
    for (const Shape& s : shapes) {
      for (const Axis axis : {Axis::kRow, Axis::kColumn}) check_pass_in(draw, s, axis, n, false, report);
    }
    // float16 has no exponents left for that.
    if (n.type != at::kHalf) check_pass_in(draw, shapes[0], Axis::kRow, n, true, report);
  }
}

}  // namespace axial
