#include "model/gradcheck.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/gradcheck_cases.h"
#include "model/tolerance.h"

namespace axial {
namespace {

using Report = std::function<void(GradcheckResult)>;

// One element of t as a scalar view, by its number in row-major order.
at::Tensor element(const at::Tensor& t, std::int64_t index) {
  std::int64_t offset = t.storage_offset();
  for (std::int64_t i = t.dim() - 1; i >= 0; --i) {
    offset += index % t.size(i) * t.stride(i);
    index /= t.size(i);
  }
  return t.detach().as_strided({}, {}, offset);
}

// Derivative at 0 of f(step), to fourth order: (8 (f(e) - f(-e)) - (f(2e) - f(-2e))) / 12e.
template <class F>
double five_point(F f) {
  constexpr double kStep = 3e-4;
  const double near = f(kStep) - f(-kStep), far = f(2 * kStep) - f(-2 * kStep);
  return (8 * near - far) / (12 * kStep);
}

std::vector<at::Tensor> gradients(const at::Tensor& out, const std::vector<at::Tensor>& leaves, const at::Tensor& g) {
  return torch::autograd::grad({out}, leaves, {g}, /*retain_graph=*/false, /*create_graph=*/false,
                               /*allow_unused=*/false);
}

// Largest error over sampled elements of one leaf and one random direction.
double finite_difference_error(Draw& draw, const GradcheckProblem& problem, const Leaf& leaf, const at::Tensor& grad,
                               const at::Tensor& g, const std::vector<std::int64_t>& elements) {
  const at::NoGradGuard no_grad;
  const auto value = [&] { return (problem.fused() * g).sum().item<double>(); };
  double worst = 0;
  const auto compare = [&](double difference, double exact) {
    const double error = std::abs(difference - exact) / (1 + std::abs(exact));
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  };
  for (const std::int64_t index : elements) {
    at::Tensor x = element(leaf.fused, index);
    const at::Tensor before = x.clone();
    const double difference = five_point([&](double step) {
      x.copy_(before + step);
      return value();
    });
    x.copy_(before);
    compare(difference, element(grad, index).item<double>());
  }
  at::Tensor x = leaf.fused.detach();
  const at::Tensor before = x.clone();
  at::Tensor direction = draw.normal(x.sizes());
  direction.div_(direction.norm());
  const double difference = five_point([&](double step) {
    x.copy_(before + step * direction);
    return value();
  });
  x.copy_(before);
  compare(difference, (grad * direction).sum().item<double>());
  return worst;
}

// `planted` is added, times (1 + |g|), to one sampled element of the gradient of the first leaf.
void check_problem(Draw& draw, const GradcheckProblem& problem, double planted, const Report& report) {
  std::vector<at::Tensor> leaves, reference_leaves;
  for (const Leaf& leaf : problem.leaves) {
    leaves.push_back(leaf.fused);
    reference_leaves.push_back(leaf.reference);
  }
  const at::Tensor out = problem.fused(), expected = problem.reference();
  const at::Tensor g = incoming_gradient(draw, out.sizes(), problem.incoming);
  const std::vector<at::Tensor> actual = gradients(out, leaves, g);
  const std::vector<at::Tensor> exact = gradients(expected, reference_leaves, g);

  const double tight = tolerance(at::kDouble, false, Quantity::kBranch);
  const auto add = [&](const char* method, const std::string& quantity, double error, double allowed) {
    report({problem.name, method, quantity, error, allowed, error <= allowed, -1});
  };
  add("reference", "forward", relative_error(out, expected), tight);
  std::vector<std::vector<std::int64_t>> elements;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    elements.emplace_back();
    for (int n = 0; n < problem.elements; ++n) elements[i].push_back(draw.index(leaves[i].numel()));
  }
  if (planted != 0) {
    at::Tensor victim = element(actual[0], elements[0][0]);
    victim.add_(planted * (1 + victim.abs()));
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    add("reference", "d " + problem.leaves[i].name, relative_error(actual[i], exact[i]), tight);
  }
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    add("finite differences", "d " + problem.leaves[i].name,
        finite_difference_error(draw, problem, problem.leaves[i], actual[i], g, elements[i]),
        kFiniteDifferenceTolerance);
  }
  bool finite = at::isfinite(out).all().item<bool>();
  for (const at::Tensor& t : actual) finite = finite && at::isfinite(t).all().item<bool>();
  add("finite", "all", finite ? 0 : INFINITY, 0);
}

}  // namespace

std::vector<GradcheckResult> gradcheck(at::Device device, const GradcheckOptions& options) {
  TORCH_CHECK(options.type == at::kDouble, "gradient check: finite differences need float64, ", options.type,
              " was asked for (their rounding error would drown the difference)");
  const at::AutoGradMode enable(true);
  std::vector<GradcheckResult> results;
  const Report report = [&](GradcheckResult result) {
    results.push_back(std::move(result));
    if (options.progress) options.progress(results.back());
  };
  Draw draw(options.seed, device);
  const std::vector<GradcheckProblem> problems = gradcheck_problems(draw);
  const std::size_t victim = options.seed % problems.size();
  for (std::size_t i = 0; i < problems.size(); ++i) {
    check_problem(draw, problems[i], i == victim ? options.planted_error : 0, report);
  }
  check_precision(draw, report);
  return results;
}

}  // namespace axial
