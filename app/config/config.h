// The configuration, typed. Every key is described once, in app/config/schema.cpp: type, range, default,
// unit and help; parsing, validation, --help, the printed effective configuration and the documentation
// follow from that table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace axial::app {

struct ModelConfig {
  std::string stem;  // patch, conv
  std::int64_t patch_size;
  std::vector<std::int64_t> stem_channels;
  std::int64_t stem_stride;
  std::string stem_norm;        // batch, none
  std::string stem_activation;  // relu, gelu, none
  std::vector<std::int64_t> dim, heads, depth;
  double mlp_ratio;
  bool mlp_conv;
  bool position;
  bool relative_bias, position_sensitive, rotary;
  double rotary_base, layer_scale;
  std::string first_axis;  // width, height
  double attention_dropout, projection_dropout, drop_path, head_dropout;
  bool float32_residual;
  std::string backend;  // fused, reference
};

struct DataConfig {
  std::string dataset;
  std::string dir;
  std::int64_t batch_size, eval_batch_size;
  bool drop_last;
  double validation_fraction;     // of the training set, held out; 0: the test set is the validation set
  std::int64_t train_limit;       // use only the first so many training images; 0: all
  std::vector<double> mean, std;  // empty: the set's own
  std::int64_t synthetic_train, synthetic_test, synthetic_channels, synthetic_height, synthetic_width,
      synthetic_classes;
  std::int64_t folder_channels, folder_height, folder_width;  // image_folder, image_list: what images are brought to
  double crop_pct;
  std::string crop_mode;              // center, squash, border
  double test_fraction;               // of each class, of image sets that come without a test part
  std::string train_list, test_list;  // dataset image_list: CSV files
  bool list_outside;                  // their paths may be absolute or leave the list's folder
  std::int64_t workers, prefetch;     // threads that decode (0: one a core); batches ahead
  std::string cache;                  // memory, disk, none
  std::int64_t cache_memory;          // MiB
  std::string cache_dir;              // empty: the user's cache folder
};

struct AugmentConfig {
  std::int64_t pad_crop;
  bool trivial;
  bool flip, alternate_flip;
  double erase;
  std::vector<double> erase_area;    // least, greatest
  std::vector<double> scale, ratio;  // random resized crop: least and greatest area and proportions; scale empty: off
  double mixup, cutmix;              // alpha; 0: off
  double mix_probability;            // that a sample is mixed, where one of them is on
};

struct OptimConfig {
  std::string name;  // sgd, adamw, muon
  double lr;         // of SGD or AdamW; with muon, of the parameters that AdamW takes
  double momentum;   // SGD
  bool nesterov;
  std::vector<double> betas;
  double eps;
  double weight_decay;
  double muon_lr, muon_momentum, muon_weight_decay;
  std::string schedule;  // cosine, linear, constant
  double warmup;         // fraction of all steps
  double final_lr;       // fraction of lr at the end
  double clip_norm;      // 0: off
  double layer_decay;    // of the learning rate, from layer to layer towards the stem; 1: off
};

struct TrainConfig {
  std::int64_t epochs;
  std::uint64_t seed;
  std::string device;     // auto, cpu, cuda, cuda:N
  std::string precision;  // float32, tf32, bfloat16, float16
  std::int64_t threads;   // CPU threads; 0: as many as there are cores
  std::int64_t accumulate;
  double label_smoothing;
  double ema_decay;  // 0: off
  std::int64_t eval_every, checkpoint_every, keep_last, log_every;
  std::string on_nonfinite;  // stop, skip
  double loss_scale;         // initial loss scale of float16
  std::int64_t patience;     // evaluations without a better one before the run ends; 0: off
  std::string eval_metric;   // top1, loss: what "better" means
  std::string eval_tta;      // none, flip, translate, flip_translate: test-time augmentation
  std::int64_t keep_best;    // checkpoints of the best epochs that are kept
  std::string init_from;     // checkpoint or run whose weights to start from; empty: none
  std::string freeze;        // patterns of parameters that stay as they are
  std::string output;        // folder in which run directories are made
  bool tensorboard;
  bool cuda_graph;         // where the step can be recorded
  bool detect_anomaly;     // name the layer whose output or gradient is not finite
  std::string self_check;  // auto (on a GPU), always, never
};

struct Config {
  ModelConfig model;
  DataConfig data;
  AugmentConfig augment;
  OptimConfig optim;
  TrainConfig train;
};

}  // namespace axial::app
