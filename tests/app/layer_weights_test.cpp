// Weights move between files of other programs and the layer: a safetensors file with the reference's names.

#include <ATen/ATen.h>

#include "app/checkpoint/safetensors.h"
#include "app/train/state.h"
#include "model/attention.h"
#include "tests/app/program.h"

namespace axial::test {
namespace {

TEST(LayerWeights, AFileWithTheReferencesNamesLoadsIntoTheLayer) {
  torch::manual_seed(3);
  app::SafetensorsFile file;
  const std::int64_t d = 24;
  for (const std::string axis : {"row", "col"}) {
    file.tensors[axis + "_norm.weight"] = at::randn({d});
    file.tensors[axis + "_norm.bias"] = at::randn({d});
    file.tensors[axis + "_qkv.weight"] = at::randn({3 * d, d});
    file.tensors[axis + "_out.weight"] = at::randn({d, d});
    file.tensors[axis + "_out.bias"] = at::randn({d});
  }
  const auto path = std::filesystem::temp_directory_path() / ("axial-layer-" + std::to_string(::getpid()) + ".safetensors");
  app::write_safetensors(path, file);
  AxialAttentionOptions options;
  options.dim = d;
  options.heads = 3;
  AxialAttention layer(options);
  app::load_into(app::read_safetensors(path), path, "", app::named_tensors(*layer));
  std::filesystem::remove(path);
  for (const auto& [name, tensor] : app::named_tensors(*layer)) EXPECT_TRUE(at::equal(tensor, file.tensors.at(name))) << name;
  EXPECT_EQ(app::named_tensors(*layer).size(), file.tensors.size());

  // and the layer computes with them: one pass by hand in float64
  const at::Tensor x = at::randn({2, 3, 5, d});
  layer->eval();
  at::Tensor y = x.to(at::kDouble);
  for (const std::string axis : {"row", "col"}) {
    auto w = [&](const std::string& name) { return file.tensors.at(axis + name).to(at::kDouble); };
    const at::Tensor line = axis == "row" ? y : y.transpose(1, 2);
    const at::Tensor z = at::layer_norm(line, {d}, w("_norm.weight"), w("_norm.bias"), 1e-5);
    const auto qkv = z.matmul(w("_qkv.weight").t()).chunk(3, -1);
    auto heads = [&](const at::Tensor& t) { return t.reshape({t.size(0), t.size(1), t.size(2), 3, d / 3}).transpose(2, 3); };
    const at::Tensor p = (heads(qkv[0]).matmul(heads(qkv[1]).transpose(-2, -1)) / std::sqrt(d / 3.0)).softmax(-1);
    const at::Tensor o = p.matmul(heads(qkv[2])).transpose(2, 3).reshape(line.sizes());
    const at::Tensor out = line + o.matmul(w("_out.weight").t()) + w("_out.bias");
    y = axis == "row" ? out : out.transpose(1, 2);
  }
  const double error = (layer->forward(x).to(at::kDouble) - y).norm().item<double>() / y.norm().item<double>();
  EXPECT_LT(error, 1e-5);
}

}  // namespace
}  // namespace axial::test
