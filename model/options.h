// Options of the axial layers, documented where they are declared; every module takes one of these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace axial {

// Which code a layer runs on. `fused` is ours (kernels/ behind an autograd Function with a hand-written
// backward); `reference` is composed of ATen operators with autograd. They agree to the tolerances of
// model/tolerance.h, forward and every gradient.
enum class Backend { kFused, kReference };

// The axis along which a pass attends. A row is a line along the width (H*B lines of W tokens).
enum class Axis { kRow, kColumn };

struct AxialAttentionOptions {
  std::int64_t dim = 64;       // D, channels of x[B, H, W, D]
  std::int64_t heads = 4;      // h, divides dim; d = dim / heads <= 256
  Axis first = Axis::kRow;     // which pass comes first; the other one follows
  double dropout = 0;          // on the attention probabilities, [0, 1); granularity 1/256
  bool relative_bias = false;  // learned 1-D relative position bias per head and axis:
                               // row_bias[h, 2W-1], col_bias[h, 2H-1], added to the scores
  // Position-sensitive attention (model/position_sensitive.h): learned tables row_relative_{q,k,v}[2W-1, d] and
  // col_relative_{q,k,v}[2H-1, d] beside queries, keys and values
  bool position_sensitive = false;
  std::int64_t height = 0;  // H, W: needed (> 0) only with relative_bias or position_sensitive, which fix the size
  std::int64_t width = 0;
  bool rotary = false;            // rotary position embedding of q and k along each axis (model/rotary.h);
                                  // d must be even; no parameters, any H and W
  double rotary_base = 100;       // of its angles, > 1; 100 suits lines of images (Heo et al. 2024)
  double layer_scale = 0;         // > 0: a learned factor of each channel of each branch starts there (row_scale[D],
                                  // col_scale[D]; mlp_scale[D] of a block); 0: none
  double projection_dropout = 0;  // on the output of each branch, [0, 1); granularity 1/256
  double drop_path = 0;           // stochastic depth of each of the two passes, per sample, [0, 1)
  double eps = 1e-5;              // of the layer norms
  Backend backend = Backend::kFused;
  std::uint64_t stream = 0;  // random stream of the row pass; the column pass uses stream + 1,
                             // stochastic depth stream + 2 and + 3; projection_dropout those of model/dropout.h
};

struct AxialBlockOptions {
  AxialAttentionOptions attention;
  double mlp_ratio = 2;   // hidden width of the MLP as a multiple of dim
  bool mlp_conv = false;  // the MLP's hidden channels are convolved 3x3, each by itself, before the GELU
};

enum class Stem { kPatch, kConv };
enum class StemNorm { kBatch, kNone };
enum class Activation { kRelu, kGelu, kNone };

struct AxialClassifierOptions {
  // input: images [B, channels, image_height, image_width], already normalised
  std::int64_t channels = 1;
  std::int64_t image_height = 28;
  std::int64_t image_width = 28;
  std::int64_t classes = 10;

  // kPatch: one convolution patch_size x patch_size with that stride (sizes are padded up to a multiple).
  // kConv: for each entry c of stem_channels a 3x3 convolution to c channels, 3x3 max pooling of stride
  // 2, norm, activation; then a 3x3 convolution of stride stem_stride to dim[0], norm, activation.
  Stem stem = Stem::kConv;
  std::int64_t patch_size = 4;
  std::vector<std::int64_t> stem_channels = {};
  std::int64_t stem_stride = 2;
  StemNorm stem_norm = StemNorm::kBatch;
  Activation stem_activation = Activation::kRelu;

  // Stages; between two stages tokens are merged 2x2 (LayerNorm, then a linear map 4*dim[i] -> dim[i+1];
  // odd sizes are padded with zeros). The three lists have one entry per stage.
  std::vector<std::int64_t> dim = {64};
  std::vector<std::int64_t> heads = {4};
  std::vector<std::int64_t> depth = {1};

  double mlp_ratio = 2;
  bool mlp_conv = false;
  bool position = true;  // learned row_pos[H, 1, D] + col_pos[1, W, D] added after the stem
  bool relative_bias = false;
  bool position_sensitive = false;
  bool rotary = false;  // rotary position embedding of q and k
  double rotary_base = 100;
  double layer_scale = 0;  // initial value of the learned factors of all branches; 0: none
  Axis first = Axis::kRow;
  double attention_dropout = 0;
  double projection_dropout = 0;  // on the output of every branch
  double drop_path = 0;           // of the deepest block; rises linearly from 0 at the first
  double head_dropout = 0;        // before the linear head
  // With 16-bit images, tokens between the branches are float32 all the same, at twice their memory: the sum of a
  // stage's branches is rounded no more. Products stay in the type of the images, as do what the stem and a merge
  // give and what the head takes.
  bool float32_residual = false;
  Backend backend = Backend::kFused;
};

}  // namespace axial
