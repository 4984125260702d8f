#include "model/dropout.h"

#include <ATen/ATen.h>

#include "kernels/features.h"
#include "model/bridge.h"

namespace axial {

bool draws(double p, const RandomState& random) { return p > 0 && random.rng.defined(); }

kernels::Dropout kernel_dropout(double p, const RandomState& random, std::uint64_t stream,
                                std::int64_t lines_per_sample) {
  kernels::Dropout dropout;
  if (!draws(p, random)) return dropout;
  const at::Tensor& rng = random.rng;
  TORCH_CHECK(rng.scalar_type() == at::kLong && rng.dim() == 1 && rng.size(0) == 2 && rng.is_contiguous(),
              "random state: expected int64 [2] = {seed, offset}, got ", rng.scalar_type(), " ", rng.sizes());
  dropout.p = p;
  dropout.rng = reinterpret_cast<const std::uint64_t*>(rng.const_data_ptr<std::int64_t>());
  dropout.stream = stream;
  dropout.first_line = random.first_sample * lines_per_sample;
  return dropout;
}

at::Tensor dropout_mask(const kernels::Lines& lines, std::int64_t heads, double p, const RandomState& random,
                        std::uint64_t stream, std::int64_t lines_per_sample) {
  TORCH_CHECK(draws(p, random), "dropout_mask: nothing is drawn at p = ", p, " or without a random state");
  const at::Device device = random.rng.device();
  const c10::OptionalDeviceGuard guard(device);
  at::Tensor keep =
      at::empty({lines.count(), heads, lines.length, lines.length}, at::dtype(at::kByte).device(device));
  if (keep.numel() == 0) return keep;
  const kernels::Dropout dropout = kernel_dropout(p, random, stream, lines_per_sample);
  auto* data = keep.mutable_data_ptr<std::uint8_t>();
  if (device.is_cuda()) {
    check_status(kernels::cuda::dropout_mask(lines, heads, dropout, data, current_stream(device)), "dropout_mask");
  } else {
    check_status(kernels::cpu::dropout_mask(lines, heads, dropout, data, executor()), "dropout_mask");
  }
  return keep;
}

at::Tensor sample_scale(std::int64_t batch, double p, const RandomState& random, std::uint64_t stream,
                        at::ScalarType type) {
  if (!draws(p, random)) return {};
  kernels::Lines lines;  // one line of one token a sample
  lines.outer[0] = batch;
  lines.length = 1;
  const at::Tensor keep = dropout_mask(lines, 1, p, random, stream, 1);  // [B, 1, 1, 1]
  return keep.view({batch}).to(type).mul_(kernels::dropout_rate(p).scale);
}

at::Tensor projection_scale(std::int64_t batch, std::int64_t tokens, std::int64_t dim, double p,
                            const RandomState& random, std::uint64_t stream, at::ScalarType type) {
  if (!draws(p, random)) return {};
  const at::Device device = random.rng.device();
  const c10::OptionalDeviceGuard guard(device);
  const at::Tensor keep = at::empty({batch * tokens, dim}, at::dtype(at::kByte).device(device));
  const kernels::Dropout dropout = kernel_dropout(p, random, stream + kProjectionStreams, tokens);
  auto* data = keep.mutable_data_ptr<std::uint8_t>();
  check_status(device.is_cuda()
                   ? kernels::cuda::feature_mask(batch * tokens, dim, dropout, data, current_stream(device))
                   : kernels::cpu::feature_mask(batch * tokens, dim, dropout, data, executor()),
               "projection_scale");
  return keep.to(type).mul_(kernels::dropout_rate(p).scale);
}

at::Tensor feature_scale(std::int64_t batch, std::int64_t features, double p, const RandomState& random,
                         std::uint64_t stream, at::ScalarType type) {
  if (!draws(p, random)) return {};
  kernels::Lines lines;  // one line a sample, whose L x L draws cover the features
  lines.outer[0] = batch;
  while (lines.length * lines.length < features) ++lines.length;
  const at::Tensor keep = dropout_mask(lines, 1, p, random, stream, 1);  // [B, 1, L, L]
  return keep.view({batch, lines.length * lines.length})
      .slice(1, 0, features)
      .to(type)
      .mul_(kernels::dropout_rate(p).scale);  // [B, D]
}

}  // namespace axial
