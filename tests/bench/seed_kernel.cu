// The attention kernel that the project started from, for comparison alone (layer.py --variants seed): a block is one
// sample and head, a thread one query; K and V lie in shared memory. float32, forward, lines of at most 64 tokens.
#include <float.h>

#include <cuda_runtime.h>
#include <torch/extension.h>

__global__ void attention_kernel(const float* __restrict__ Q, const float* __restrict__ K,
                                 const float* __restrict__ V, float* __restrict__ O, const float scale,
                                 const int heads, const int seq_len, const int head_dim) {
  const int b = blockIdx.x / heads, h = blockIdx.x % heads, pos = threadIdx.x;
  const int elem_stride = head_dim, head_stride = seq_len * head_dim, batch_stride = heads * head_stride;
  const float* Q_bh = Q + b * batch_stride + h * head_stride;
  const float* K_bh = K + b * batch_stride + h * head_stride;
  const float* V_bh = V + b * batch_stride + h * head_stride;
  float* O_bh = O + b * batch_stride + h * head_stride;
  extern __shared__ float smem[];
  float* K_smem = smem;
  float* V_smem = smem + seq_len * head_dim;
  for (int i = threadIdx.x; i < seq_len * head_dim; i += blockDim.x) {
    const int row = i / head_dim, col = i % head_dim;
    K_smem[i] = K_bh[row * elem_stride + col];
    V_smem[i] = V_bh[row * elem_stride + col];
  }
  __syncthreads();
  if (pos >= seq_len) return;
  const float* q = Q_bh + pos * elem_stride;
  float scores[64];
  float max_score = -FLT_MAX;
  for (int i = 0; i < seq_len; i++) {
    float score = 0.0f;
    for (int d = 0; d < head_dim; d++) score += q[d] * K_smem[i * head_dim + d];
    score *= scale;
    scores[i] = score;
    if (score > max_score) max_score = score;
  }
  float sum_exp = 0.0f;
  for (int i = 0; i < seq_len; i++) {
    scores[i] = expf(scores[i] - max_score);
    sum_exp += scores[i];
  }
  const float inv_sum = 1.0f / sum_exp;
  for (int d = 0; d < head_dim; d++) {
    float o_val = 0.0f;
    for (int i = 0; i < seq_len; i++) o_val += scores[i] * inv_sum * V_smem[i * head_dim + d];
    O_bh[pos * elem_stride + d] = o_val;
  }
}

torch::Tensor fused_attention_cuda(torch::Tensor Q, torch::Tensor K, torch::Tensor V, double scale) {
  const int batch = Q.size(0), heads = Q.size(1), seq_len = Q.size(2), head_dim = Q.size(3);
  auto O = torch::empty_like(Q);
  attention_kernel<<<batch * heads, seq_len, 2 * seq_len * head_dim * sizeof(float)>>>(
      Q.data_ptr<float>(), K.data_ptr<float>(), V.data_ptr<float>(), O.data_ptr<float>(), (float)scale, heads,
      seq_len, head_dim);
  return O;
}
