// The CUDA side of a build without CUDA.
#include "kernels/features.h"
#include "kernels/loss.h"
#include "kernels/maps.h"
#include "kernels/mlp.h"
#include "kernels/pass.h"
#include "kernels/tokens.h"
#include "kernels/update.h"
#include "kernels/trivial.h"

namespace axial::kernels::cuda {

namespace {

Status unavailable() { return failure(Code::kUnsupported, "built without CUDA"); }

}  // namespace

bool built() { return false; }

const char* architectures() { return ""; }

Status usable() { return unavailable(); }

Status attention_forward(const AttentionProblem&, const AttentionOutput&, CUstream_st*) { return unavailable(); }

std::size_t attention_backward_workspace(const AttentionProblem&, const AttentionGradients&) { return 0; }

Status attention_backward(const AttentionProblem&, const AttentionGradients&, void*, std::size_t, CUstream_st*) {
  return unavailable();
}

Status dropout_mask(const Lines&, std::int64_t, const Dropout&, std::uint8_t*, CUstream_st*) { return unavailable(); }

Status feature_mask(std::int64_t, std::int64_t, const Dropout&, std::uint8_t*, CUstream_st*) { return unavailable(); }

Status normalise(const NormProblem&, void*, CUstream_st*) { return unavailable(); }

Status normalise_backward(const NormProblem&, const void*, const void*, void*, CUstream_st*) { return unavailable(); }

Status choose(const AttentionProblem&, KernelChoice*) { return unavailable(); }

Status choose_pass(const PassProblem&, KernelChoice*) { return unavailable(); }

std::size_t packed_bytes(const PassProblem&) { return 0; }

Status pack_weights(const PassProblem&, void*, CUstream_st*) { return unavailable(); }

Status pack_weights(const PassProblem*, void* const*, int, CUstream_st*) { return unavailable(); }

Status pass_forward(const PassProblem&, const void*, const Tokens&, CUstream_st*) { return unavailable(); }

std::size_t pass_backward_workspace(const PassProblem&) { return 0; }

std::size_t pass_sums_bytes(const PassProblem&) { return 0; }

Status finish_passes(const PassSums*, int, CUstream_st*) { return unavailable(); }

Status pass_backward(const PassProblem&, const void*, const ConstTokens&, const Tokens&, const PassGradients&, void*,
                     std::size_t, CUstream_st*, PassSums*) {
  return unavailable();
}

Status choose_mlp(const MlpProblem&, KernelChoice*) { return unavailable(); }

std::size_t mlp_packed_bytes(const MlpProblem&) { return 0; }

Status pack_mlp(const MlpProblem&, void*, CUstream_st*) { return unavailable(); }

Status pack_mlp(const MlpProblem*, void* const*, int, CUstream_st*) { return unavailable(); }

Status mlp_forward(const MlpProblem&, const void*, void*, CUstream_st*) { return unavailable(); }

std::size_t mlp_backward_workspace(const MlpProblem&) { return 0; }

Status mlp_backward(const MlpProblem&, const void*, const void*, void*, const MlpGradients&, void*, std::size_t,
                    CUstream_st*) {
  return unavailable();
}

std::size_t pool_workspace(const PoolProblem&) { return 0; }

Status pool(const PoolProblem&, void*, void*, std::size_t, CUstream_st*) { return unavailable(); }

Status pool_backward(const PoolProblem&, const void*, void*, CUstream_st*) { return unavailable(); }

Status add_positions(const PositionsProblem&, const void*, const void*, const void*, void*, CUstream_st*) {
  return unavailable();
}

std::size_t positions_backward_workspace(const PositionsProblem&) { return 0; }

Status positions_backward(const PositionsProblem&, const void*, void*, void*, void*, std::size_t, CUstream_st*) {
  return unavailable();
}

Status stem(const StemProblem&, void*, CUstream_st*) { return unavailable(); }

std::size_t stem_backward_workspace(const StemProblem&, const StemGradients&) { return 0; }

Status stem_backward(const StemProblem&, const void*, const StemGradients&, void*, std::size_t, CUstream_st*) {
  return unavailable();
}

Status pixels(const PixelsProblem&, void*, CUstream_st*) { return unavailable(); }

Status trivial(const TrivialProblem&, std::uint8_t*, CUstream_st*) { return unavailable(); }

Status max_pool(const MaxPoolProblem&, const void*, void*, std::uint8_t*, CUstream_st*) { return unavailable(); }

Status max_pool_backward(const MaxPoolProblem&, const void*, const std::uint8_t*, void*, CUstream_st*) {
  return unavailable();
}

std::size_t batch_norm_workspace(const BatchNormProblem&) { return 0; }

Status batch_norm(const BatchNormProblem&, const RunningStatistics&, void*, void*, void*, std::size_t, CUstream_st*) {
  return unavailable();
}

Status batch_norm_backward(const BatchNormProblem&, const void*, const void*, void*, void*, void*, std::size_t,
                           CUstream_st*) {
  return unavailable();
}

Status judge_update(const UpdateRules&, const UpdateState&, CUstream_st*) { return unavailable(); }

Status softmax_loss(const LossProblem&, const LossOutput&, CUstream_st*) { return unavailable(); }

}  // namespace axial::kernels::cuda
