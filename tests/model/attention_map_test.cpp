#include "model/attention_map.h"
#include "model/classifier.h"

#include "model/reference.h"
#include "model/rotary.h"
#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

AxialClassifierOptions small_options() {
  AxialClassifierOptions o;
  o.image_height = 9;
  o.image_width = 14;
  o.stem_stride = 2;  // 5 x 7 tokens
  o.dim = {12};
  o.heads = {3};
  o.depth = {2};
  o.classes = 4;
  o.relative_bias = true;
  return o;
}

// Away from the initial values, under which attention is nearly even.
void randomise(AxialClassifier& model) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& p : model->parameters()) p.add_((torch::randn(p.sizes()) * 0.5).to(p.device()));
}

class AttentionMapTest : public OnDevice {};

// The definition with whole matrices: a token's share after a pass is half its own and half what its line gives.
at::Tensor dense(const at::Tensor& probabilities, Axis axis, std::int64_t height, std::int64_t width) {
  const at::Tensor p = probabilities.mean(2)[0].to(at::kCPU, at::kDouble);  // [N, L, L]
  at::Tensor matrix = torch::eye(height * width, at::kDouble) * 0.5;
  for (std::int64_t i = 0; i < height; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      for (std::int64_t k = 0; k < (axis == Axis::kRow ? width : height); ++k) {
        const std::int64_t from = axis == Axis::kRow ? i * width + k : k * width + j;
        matrix[i * width + j][from] += 0.5 * (axis == Axis::kRow ? p[i][j][k] : p[j][i][k]);
      }
    }
  }
  return matrix;
}

TEST_P(AttentionMapTest, IsTheProductOfThePassesMatrices) {
  for (const auto& [first, rotary] : {std::pair(Axis::kRow, false), {Axis::kColumn, false}, {Axis::kRow, true}}) {
    AxialClassifierOptions o = small_options();
    o.first = first;
    o.rotary = rotary;
    AxialClassifier model(o);
    randomise(model);
    model->to(device());
    const at::Tensor images = torch::randn({1, 1, 9, 14}).to(device());
    const AttentionMaps maps = attention_rollout(*model, images);

    const torch::NoGradGuard no_grad;
    model->eval();
    at::Tensor x = model->embed(images);
    at::Tensor both = torch::eye(35, at::kDouble), rows = both, columns = both;
    for (AxialBlock block : model->stages()[0]) {
      at::Tensor between = x;
      for (const Axis axis : {first, first == Axis::kRow ? Axis::kColumn : Axis::kRow}) {
        PassOptions pass;
        pass.axis = axis;
        pass.heads = 3;
        if (rotary) pass.rotary = rotary_table(axis == Axis::kRow ? 7 : 5, 4, o.rotary_base, options(at::kFloat));
        const PassParameters parameters = block->attention()->parameters_of(axis);
        const at::Tensor m = dense(reference_pass_probabilities(between, parameters, pass), axis, 5, 7);
        both = m.matmul(both);
        (axis == Axis::kRow ? rows : columns) = m.matmul(axis == Axis::kRow ? rows : columns);
        between = reference_pass(between, parameters, pass);
      }
      x = block->forward(x);
    }
    const auto expect = [](const at::Tensor& map, const at::Tensor& matrix, const char* what) {
      EXPECT_LE(relative_error(map[0].to(at::kCPU, at::kDouble), matrix.mean(0).view({5, 7})), 1e-5) << what;
    };
    expect(maps.both, both, "both");
    expect(maps.rows, rows, "rows");
    expect(maps.columns, columns, "columns");
    EXPECT_GT(relative_error(maps.both.cpu(), at::full({1, 5, 7}, 1.0 / 35)), 0.05) << "nothing to see";
  }
}

TEST_P(AttentionMapTest, SharesAddUpThroughMergesOfOddGrids) {
  AxialClassifierOptions o = small_options();
  o.dim = {12, 16, 16};  // 5 x 7, 3 x 4, 2 x 2 tokens
  o.heads = {3, 2, 4};
  o.depth = {1, 1, 1};
  AxialClassifier model(o);
  randomise(model);
  model->to(device());
  model->train();
  const AttentionMaps maps = attention_rollout(*model, torch::randn({3, 1, 9, 14}).to(device()));
  EXPECT_TRUE(model->is_training()) << "the mode is put back";
  for (const at::Tensor& map : {maps.both, maps.rows, maps.columns}) {
    EXPECT_EQ(map.sizes(), at::IntArrayRef({3, 5, 7}));
    EXPECT_FALSE(map.requires_grad());
    EXPECT_GE(map.min().item<float>(), 0);
    EXPECT_LE((map.sum({1, 2}) - 1).abs().max().item<float>(), 1e-5);
  }
}

// Sixteen bits beside a float32 residual stream, through a merge, are near what float32 gives.
TEST_P(AttentionMapTest, FollowsAFloat32Residual) {
  AxialClassifierOptions o = small_options();
  o.dim = {12, 16};
  o.heads = {3, 2};
  o.depth = {2, 1};
  o.float32_residual = true;
  AxialClassifier model(o);
  model->to(device());
  const at::Tensor images = torch::randn({2, 1, 9, 14}).to(options(at::kBFloat16));
  const AttentionMaps maps = attention_rollout(*model, images),
                      exact = attention_rollout(*model, images.to(at::kFloat));
  EXPECT_LE(relative_error(maps.both, exact.both), 0.01);
}

TEST_P(AttentionMapTest, EvenAttentionGivesAnEvenMap) {
  AxialClassifier model(small_options());
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) {
      if (item.key().find("qkv") != std::string::npos) item.value().zero_();
    }
  }
  model->to(device());
  const AttentionMaps maps = attention_rollout(*model, torch::randn({2, 1, 9, 14}).to(device()));
  EXPECT_LE((maps.both * 35 - 1).abs().max().item<float>(), 1e-5);
}

AXIAL_ON_DEVICES(AttentionMapTest);

}  // namespace
}  // namespace axial
