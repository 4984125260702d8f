// Test-time augmentation: what views show, what is made of them, and that it is off unless asked for.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/config/load.h"
#include "app/train/state.h"
#include "app/train/views.h"
#include "tests/app/pictures.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

using nlohmann::json;

// Without dropout and batch statistics: the same in training as in evaluation.
app::TrainingState small_state() {
  app::ImageSpec spec;
  spec.channels = 3;
  spec.height = 6;
  spec.width = 9;
  spec.classes = {"a", "b", "c", "d"};
  app::TrainingState state(app::load_config({}, {"model.stem=patch", "model.patch_size=1", "model.dim=[8]",
                                                 "model.heads=[2]", "model.depth=[1]"}),
                           spec, at::kCPU);
  at::NoGradGuard no_grad;
  std::uint64_t seed = 0;
  for (auto& [name, tensor] : state.tensors)
    tensor.copy_(at::randn(tensor.sizes(), at::detail::createCPUGenerator(++seed)));
  return state;
}

TEST(Views, MoveWholePixelsAndRepeatTheEdge) {
  const at::Tensor image = at::arange(6).view({1, 1, 2, 3});  // 0 1 2 / 3 4 5
  const auto seen = [&](const app::View& view) { return app::seen_from(image, view).flatten(); };
  const auto is = [](const at::Tensor& found, const std::vector<std::int64_t>& wanted) {
    return found.equal(at::tensor(wanted));
  };
  EXPECT_TRUE(is(seen({}), {0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(is(seen({0, 0, true}), {2, 1, 0, 5, 4, 3}));
  EXPECT_TRUE(is(seen({1, 0, false}), {0, 1, 2, 0, 1, 2}));
  EXPECT_TRUE(is(seen({-1, -1, false}), {4, 5, 5, 4, 5, 5}));
  EXPECT_TRUE(is(seen({1, 1, false}), {0, 0, 1, 0, 0, 1}));
  EXPECT_TRUE(is(seen({1, 1, true}), {1, 0, 0, 1, 0, 0})) << "moved, then mirrored";
  const at::Tensor dot = at::full({2, 3, 1, 1}, 7);
  EXPECT_TRUE(app::seen_from(dot, {-1, 1, true}).equal(dot)) << "of one pixel";
  EXPECT_TRUE(
      app::seen_from(image.to(at::kBFloat16), {-1, -1}).equal(app::seen_from(image, {-1, -1}).to(at::kBFloat16)));
}

TEST(Views, AreTheirNamesViews) {
  EXPECT_EQ(app::views_of("none").size(), 1u);
  EXPECT_EQ(app::views_of("flip").size(), 2u);
  EXPECT_EQ(app::views_of("translate").size(), 3u);
  EXPECT_EQ(app::views_of("flip_translate").size(), 6u);
  EXPECT_EQ(app::describe_views("none"), "");
  EXPECT_NE(app::describe_views("translate").find("mean logits of 3 views"), std::string::npos);
}

TEST(Views, LogitsAreTheMeanOverThem) {
  const app::TrainingState state = small_state();
  at::NoGradGuard no_grad;
  const at::Tensor images = at::randn({5, 3, 6, 9}, at::detail::createCPUGenerator(3));
  const auto plainly = [&](const at::Tensor& seen) {
    return app::logits_of(*state.model, seen, app::views_of("none"));
  };
  const at::Tensor plain = plainly(images), mirrored = plainly(images.flip({3}));
  EXPECT_FALSE(at::allclose(plain, mirrored, 1e-2, 1e-2)) << "else this test would see nothing";
  const at::Tensor both = app::logits_of(*state.model, images, app::views_of("flip"));
  EXPECT_TRUE(at::allclose(both, (plain + mirrored) / 2, 1e-5, 1e-6)) << "logits, not probabilities";
  EXPECT_TRUE(at::allclose(app::logits_of(*state.model, images.flip({3}), app::views_of("flip")), both, 1e-5, 1e-6))
      << "an image and its mirror image are the same";
  at::Tensor sum = at::zeros({5, 4});
  for (const app::View& view : app::views_of("flip_translate")) sum += plainly(app::seen_from(images, view));
  const at::Tensor all = app::logits_of(*state.model, images, app::views_of("flip_translate"));
  EXPECT_TRUE(at::allclose(all, sum / 6, 1e-5, 1e-6));
  EXPECT_FALSE(at::allclose(all, both, 1e-3, 1e-3));
}

class TestTimeAugmentation : public ProgramTest {};

TEST_F(TestTimeAugmentation, IsOffSaidWhereItIsOnAndTheSameInTrainEvalAndPredict) {
  const Outcome plain = run(small("plain", {"train.epochs=2", "train.seed=4"}));
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(plain.err.find("augmentation"), std::string::npos) << plain.err;
  EXPECT_FALSE(json::parse(plain.out).contains("eval_tta"));
  const Outcome trained = run(small("run", {"train.epochs=2", "train.seed=4", "train.eval_tta=flip_translate"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string said = "test-time augmentation (train.eval_tta=flip_translate): mean logits of 6 views";
  EXPECT_NE(trained.err.find("evaluation: " + said), std::string::npos) << trained.err;
  const json result = json::parse(trained.out);
  EXPECT_EQ(result.at("eval_tta"), "flip_translate");
  EXPECT_NE(result.at("loss"), json::parse(plain.out).at("loss"));

  const std::string last = "run/checkpoints/last.safetensors";
  const Outcome evaluated = run({"eval", last, "--json", "scores.json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NE(evaluated.err.find(said), std::string::npos) << evaluated.err;
  EXPECT_EQ(json::parse(evaluated.out).at("loss"), result.at("loss")) << "as training evaluated";
  EXPECT_EQ(json::parse(evaluated.out).at("eval_tta"), "flip_translate");
  EXPECT_EQ(json::parse(read_file(folder_ / "scores.json")).at("eval_tta"), "flip_translate");
  // Training is the same: without, what was trained with views is what was trained without.
  const Outcome without = run({"eval", last, "train.eval_tta=none"});
  ASSERT_EQ(without.code, 0) << without.err;
  EXPECT_EQ(json::parse(without.out).at("loss"), json::parse(plain.out).at("loss"));
  EXPECT_EQ(without.err.find("augmentation"), std::string::npos) << without.err;
  EXPECT_FALSE(json::parse(without.out).contains("eval_tta"));

  // An image and its mirror image are one to those who look at both.
  write_picture(folder_ / "left.png", 16, 20, 0, 255);
  write_picture(folder_ / "right.png", 16, 20, 255, 0);
  const auto answers = [&](const std::string& views) {
    const Outcome o = run({"predict", "plain", "left.png", "right.png", "train.eval_tta=" + views});
    EXPECT_EQ(o.code, 0) << o.err;
    const std::size_t end = o.out.find('\n');
    return std::pair(o.out.substr(8, end - 8), o.out.substr(end + 10, o.out.size() - end - 11));
  };
  const auto one = answers("none"), both = answers("flip");
  EXPECT_NE(one.first, one.second);
  EXPECT_EQ(both.first, both.second);
  EXPECT_NE(run({"runs", "."}).out.find("% (flip_translate)"), std::string::npos);
  ASSERT_EQ(run({"report", "run", "-o", "page.html"}).code, 0);
  EXPECT_NE(read_file(folder_ / "page.html").find(said), std::string::npos);

  expect_error(run({"eval", last, "train.eval_tta=rotate"}), 2, {"none, flip, translate, flip_translate", "rotate"});
  expect_error(run({"train", "--resume=run", "train.epochs=3", "train.eval_tta=none"}), 2,
               {"train.eval_tta is flip_translate, not none: a resumed run stays as it is"});
  expect_error(run({"train", "train.tta=flip"}), 2, {"train.tta", "train.eval_tta"});
}

}  // namespace
}  // namespace axial::test
