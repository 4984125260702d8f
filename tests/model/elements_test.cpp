#include "model/elements.h"

#include "model/classifier.h"
#include "tests/model/support.h"

namespace axial {
namespace {

double made(const AxialClassifierOptions& options) {
  const AxialClassifier model(options);
  double sum = 0;
  for (const auto& tensor : model->parameters()) sum += static_cast<double>(tensor.numel());
  for (const auto& tensor : model->buffers()) sum += static_cast<double>(tensor.numel());
  return sum;
}

TEST(Elements, AreThoseOfTheModelThatIsMade) {
  for (const Stem stem : {Stem::kPatch, Stem::kConv}) {
    for (const StemNorm norm : {StemNorm::kBatch, StemNorm::kNone}) {
      for (const bool tables : {false, true}) {
        AxialClassifierOptions o;
        o.channels = 3;
        o.image_height = 37;
        o.image_width = 22;
        o.classes = 7;
        o.stem = stem;
        o.stem_norm = norm;
        o.position = o.relative_bias = tables;
        EXPECT_EQ(element_count(o), made(o));
        o.patch_size = 3;
        o.stem_channels = {5, 6};
        o.stem_stride = 3;
        o.dim = {12, 16, 10};
        o.heads = {3, 2, 5};
        o.depth = {1, 2, 0};
        o.mlp_ratio = 1.3;
        EXPECT_EQ(element_count(o), made(o));
        o.layer_scale = 0.1;
        o.mlp_conv = true;
        EXPECT_EQ(element_count(o), made(o));
        o.position_sensitive = true;
        o.relative_bias = false;
        EXPECT_EQ(element_count(o), made(o));
      }
    }
  }
}

TEST(Elements, OfWhatNobodyCouldMakeAreCountedToo) {
  AxialClassifierOptions o;
  o.dim = {65536};
  o.heads = {256};
  o.depth = {1024};
  EXPECT_GT(element_count(o), 5e13);
}

}  // namespace
}  // namespace axial
