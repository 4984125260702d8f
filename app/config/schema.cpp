#include "app/config/schema.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

namespace axial::app {
namespace {

Limits any() { return {}; }
Limits integer(std::int64_t low, std::int64_t high) { return {IntegerRange{low, high}}; }
Limits real(double low, double high) { return {RealRange{low, high}}; }
Limits above(double low, double high) { return {RealRange{low, high, true, false}}; }
Limits below(double low, double high) { return {RealRange{low, high, false, true}}; }
Limits one_of(std::initializer_list<const char*> names) { return {Choice{{names.begin(), names.end()}}}; }
Limits list(Limits each, std::size_t least, std::size_t most) {
  each.least = least;
  each.most = most;
  return each;
}

bool is_device(const std::string& text) {
  if (text == "auto" || text == "cpu" || text == "cuda") return true;
  if (text.rfind("cuda:", 0) != 0) return false;
  const std::string number = text.substr(5);
  if (number.empty() || number.size() > 2 || (number.size() == 2 && number[0] == '0')) return false;
  return number.find_first_not_of("0123456789") == std::string::npos;
}

// Nothing, or names with commas between, each with something in it.
bool is_name_list(const std::string& text) {
  if (text.empty()) return true;
  bool named = false;
  for (const char c : text) {
    if (c == ',' && !named) return false;
    named = c != ',' && (named || c != ' ');
  }
  return named;
}

bool is_not_empty(const std::string& text) { return !text.empty(); }

// Out of line: with strings made in each row the table takes compilers with sanitizers minutes.
struct Adder {
  std::vector<Key>& keys;
  [[gnu::noinline]] void operator()(const char* path, Field (*field)(Config&), const char* preset,
                                    const Limits& limits, const char* unit, const char* help,
                                    const char* other_names = "") {
    keys.push_back({path, field, preset, limits, unit, help, other_names, false, false});
  }
};

// clang-format off
#define FIELD(member) [](Config& c) -> Field { return &c.member; }

// path, field, default, limits, unit, help[, names elsewhere]
std::vector<Key> make_schema() {
  std::vector<Key> keys;
  Adder add{keys};

  add("model.stem", FIELD(model.stem), "conv", one_of({"patch", "conv"}), "",
      "from pixels to tokens: patch (one strided convolution) or conv (3x3 convolutions)");
  add("model.patch_size", FIELD(model.patch_size), "4", integer(1, 256), "pixels",
      "side of a patch, stem patch only", "patch");
  add("model.stem_channels", FIELD(model.stem_channels), "[]", list(integer(1, 65536), 0, 8), "channels",
      "stem conv: each entry is a 3x3 convolution to so many channels that halves the image");
  add("model.stem_stride", FIELD(model.stem_stride), "2", integer(1, 16), "pixels",
      "stem conv: stride of its last convolution");
  add("model.stem_norm", FIELD(model.stem_norm), "batch", one_of({"batch", "none"}), "",
      "stem conv: batch normalisation or none");
  add("model.stem_activation", FIELD(model.stem_activation), "relu", one_of({"relu", "gelu", "none"}), "",
      "stem conv: activation");
  add("model.dim", FIELD(model.dim), "[64]", list(integer(1, 65536), 1, 16), "channels",
      "width of each stage; between two stages tokens are merged 2x2",
      "embed_dim width channels hidden_dim d_model");
  add("model.heads", FIELD(model.heads), "[4]", list(integer(1, 65536), 1, 16), "",
      "attention heads of each stage; divides dim, at most 256 channels a head", "num_heads n_heads nhead");
  add("model.depth", FIELD(model.depth), "[2]", list(integer(1, 1024), 1, 16), "blocks",
      "axial blocks of each stage", "depths layers num_layers blocks");
  add("model.mlp_ratio", FIELD(model.mlp_ratio), "2", above(0, 64), "",
      "hidden width of the MLP as a multiple of dim");
  add("model.mlp_conv", FIELD(model.mlp_conv), "false", any(), "",
      "3x3 convolution of each hidden channel of the MLP by itself, added to it before the GELU; the MLP then runs on "
      "library operators", "locally_enhanced dwconv conv_mlp");
  add("model.position", FIELD(model.position), "true", any(), "",
      "learned row and column position embeddings after the stem", "pos_embed");
  add("model.relative_bias", FIELD(model.relative_bias), "false", any(), "",
      "learned relative position bias per head and axis, added to the scores",
      "rel_pos");
  add("model.position_sensitive", FIELD(model.position_sensitive), "false", any(), "",
      "position-sensitive attention: learned relative positions of each axis beside queries, keys and values, on top of "
      "relative_bias and rotary where these are on; runs on library operators and keeps the attention probabilities in "
      "memory", "axial_deeplab");
  add("model.rotary", FIELD(model.rotary), "false", any(), "",
      "rotary position embedding of queries and keys along each axis (RoFormer); needs an even number of channels a head",
      "rope use_rope rotary_emb rotary_embedding");
  add("model.rotary_base", FIELD(model.rotary_base), "100", above(1, 1e9), "",
      "rotary (else without effect): base of its angles, which fall from 1 towards 1/base radians a token", "rope_theta theta rope_base");
  add("model.layer_scale", FIELD(model.layer_scale), "0", real(0, 1000), "",
      "start of a learned factor of each channel of each branch (CaiT; 0.1 or less for deep models); 0: none",
      "layer_scale_init init_values layerscale");
  add("model.first_axis", FIELD(model.first_axis), "width", one_of({"width", "height"}), "",
      "the axis along which a block attends first");
  add("model.attention_dropout", FIELD(model.attention_dropout), "0", below(0, 1), "",
      "dropout of attention probabilities, in steps of 1/256", "attn_drop attn_dropout dropout");
  add("model.projection_dropout", FIELD(model.projection_dropout), "0", below(0, 1), "",
      "dropout of the output of each branch, in steps of 1/256", "proj_drop proj_drop_rate proj_dropout dropout");
  add("model.drop_path", FIELD(model.drop_path), "0", below(0, 1), "",
      "stochastic depth of the deepest block, in steps of 1/256; rises linearly from 0 at the first",
      "drop_path_rate stochastic_depth");
  add("model.head_dropout", FIELD(model.head_dropout), "0", below(0, 1), "",
      "dropout before the linear head, in steps of 1/256", "dropout drop drop_rate");
  add("model.float32_residual", FIELD(model.float32_residual), "false", any(), "",
      "keep the residual stream (tokens between the branches) in float32 while train.precision is bfloat16 or float16; "
      "twice the tokens' memory, about twice the time of a step; CPUs and GPUs other than Hopper then leave the fused kernels",
      "residual_in_fp32 fp32_residual residual residual_dtype");
  add("model.backend", FIELD(model.backend), "fused", one_of({"fused", "reference"}), "",
      "our kernels, or composed library operators");

  add("data.dataset", FIELD(data.dataset), "fashion_mnist",
      one_of({"fashion_mnist", "mnist", "cifar10", "cifar100", "image_folder", "image_list", "synthetic"}), "",
      "image set; image_folder: PNG and JPEG files in train/CLASS/ and test/CLASS/ (or val/) or CLASS/ below dir; "
      "image_list: CSV files of path,label", "name set");
  add("data.dir", FIELD(data.dir), "\"\"", any(), "",
      "folder of the set's files; empty: $AXIAL_DATA/NAME, datasets/NAME and the system's are tried", "path root data_dir directory folder");
  add("data.train_list", FIELD(data.train_list), "\"\"", any(), "",
      "dataset image_list: CSV file of training images, path,label in a line; paths start at its folder", "train_csv csv");
  add("data.test_list", FIELD(data.test_list), "\"\"", any(), "",
      "dataset image_list: CSV file of test images; empty: data.test_fraction of the training list", "val_list test_csv val_csv");
  add("data.list_outside", FIELD(data.list_outside), "false", any(), "",
      "dataset image_list: accept absolute paths and paths that leave the list's folder");
  add("data.test_fraction", FIELD(data.test_fraction), "0.2", real(0, 0.99), "",
      "image_folder without train/, image_list without test_list: part of each class that is the test set, chosen by "
      "file names");
  add("data.batch_size", FIELD(data.batch_size), "128", integer(1, 1048576), "images",
      "images in a training batch", "batch bs batchsize");
  add("data.eval_batch_size", FIELD(data.eval_batch_size), "512", integer(1, 1048576), "images",
      "images in a batch of evaluation", "validation_batch_size test_batch_size");
  add("data.drop_last", FIELD(data.drop_last), "true", any(), "",
      "leave out a last training batch that is not full (other images each epoch)");
  add("data.validation_fraction", FIELD(data.validation_fraction), "0", below(0, 1), "",
      "part of the training set held out to choose the best epoch; 0: the test set is used for that", "val_split val_fraction");
  add("data.train_limit", FIELD(data.train_limit), "0", integer(0, 1000000000), "images",
      "use only so many training images: the first ones, or of image_folder, where they stand in order of class, a fixed "
      "choice of all; 0: all", "limit max_samples");
  add("data.mean", FIELD(data.mean), "[]", list(real(-1000, 1000), 0, 16), "",
      "per channel, of pixels in [0, 1]; empty: the set's own");
  add("data.std", FIELD(data.std), "[]", list(above(0, 1000), 0, 16), "",
      "per channel, of pixels in [0, 1]; empty: the set's own");
  add("data.synthetic_train", FIELD(data.synthetic_train), "2048", integer(1, 100000000), "images",
      "dataset synthetic: training images");
  add("data.synthetic_test", FIELD(data.synthetic_test), "512", integer(1, 100000000), "images",
      "dataset synthetic: test images");
  add("data.synthetic_channels", FIELD(data.synthetic_channels), "1", integer(1, 16), "",
      "dataset synthetic: channels");
  add("data.synthetic_height", FIELD(data.synthetic_height), "28", integer(1, 4096), "pixels",
      "dataset synthetic: image height");
  add("data.synthetic_width", FIELD(data.synthetic_width), "28", integer(1, 4096), "pixels",
      "dataset synthetic: image width");
  add("data.synthetic_classes", FIELD(data.synthetic_classes), "10", integer(1, 65536), "",
      "dataset synthetic: classes");
  add("data.folder_channels", FIELD(data.folder_channels), "3", integer(1, 3), "",
      "image_folder, image_list: 1 (gray) or 3 (colour)", "in_chans");
  add("data.folder_height", FIELD(data.folder_height), "32", integer(1, 4096), "pixels",
      "image_folder, image_list: height that images are brought to", "img_size input_size image_size");
  add("data.folder_width", FIELD(data.folder_width), "32", integer(1, 4096), "pixels",
      "image_folder, image_list: width that images are brought to");
  add("data.crop_pct", FIELD(data.crop_pct), "1", above(0, 1), "",
      "image_folder, image_list: part of the picture's sides that is seen, around its middle");
  add("data.crop_mode", FIELD(data.crop_mode), "center", one_of({"center", "squash", "border"}), "",
      "image_folder, image_list: center cuts out the middle part of the wanted proportions, squash gives all of the "
      "picture these proportions, border shows all of it with bars");
  add("data.workers", FIELD(data.workers), "0", integer(0, 1024), "threads",
      "image_folder, image_list: threads that decode; 0: one for each core; changes no pixel", "num_workers n_worker loader_threads");
  add("data.prefetch", FIELD(data.prefetch), "2", integer(1, 256), "batches",
      "batches that are decoded ahead where the set does not fit into data.cache_memory", "prefetch_factor");
  add("data.cache", FIELD(data.cache), "memory", one_of({"memory", "disk", "none"}), "",
      "decoded images: memory keeps as many as fit into cache_memory (all that fit: decoded once, at the start), disk "
      "keeps them in cache_dir, none decodes anew each time", "cache_images cache_mode");
  add("data.cache_memory", FIELD(data.cache_memory), "4096", integer(0, 16777216), "MiB",
      "cache memory: the most that decoded images may take, of all parts of the set together", "memory_limit cache_size");
  add("data.cache_dir", FIELD(data.cache_dir), "\"\"", any(), "",
      "cache disk: folder of its files; empty: ${XDG_CACHE_HOME:-~/.cache}/axial/pictures");

  add("augment.pad_crop", FIELD(augment.pad_crop), "0", integer(0, 256), "pixels",
      "zero padding on each side before a random crop to the old size; 0: off", "crop random_crop padding");
  add("augment.flip", FIELD(augment.flip), "false", any(), "",
      "mirror half of the images left to right (timm's hflip 0.5)", "hflip horizontal_flip random_flip");
  add("augment.alternate_flip", FIELD(augment.alternate_flip), "false", any(), "",
      "mirror each image in every other epoch, one half of them in even ones, instead of by chance (Jordan 2024)",
      "alternating_flip");
  add("augment.trivial", FIELD(augment.trivial), "false", any(), "",
      "TrivialAugment Wide: one of 14 operations (shear, translate, rotate, brightness, colour, contrast, sharpness, "
      "posterise, solarise, auto-contrast, equalise, none) of random strength on each image, before the others",
      "trivial_augment trivialaugment autoaugment auto_augment aa randaugment");
  add("augment.erase", FIELD(augment.erase), "0", real(0, 1), "",
      "probability of erasing one random rectangle", "random_erasing reprob cutout");
  add("augment.erase_area", FIELD(augment.erase_area), "[0.02, 0.33]", list(above(0, 1), 2, 2), "of the image",
      "least and greatest area of the erased rectangle");
  add("augment.scale", FIELD(augment.scale), "[]", list(above(0, 1), 0, 2), "of the picture",
      "image_folder, image_list: least and greatest area of a random part that each training image is cut down to "
      "(random resized crop; decodes it anew each time); empty: off", "rrc random_resized_crop");
  add("augment.ratio", FIELD(augment.ratio), "[0.75, 1.3333333333333333]", list(above(0, 100), 2, 2), "",
      "least and greatest proportions of that part, relative to the wanted ones");
  add("augment.mixup", FIELD(augment.mixup), "0", real(0, 1000), "",
      "mix images and labels of two samples, in proportions from Beta(alpha, alpha) for each sample; 0: off; with cutmix "
      "on too, half of the samples take either", "mixup_alpha mix_up");
  add("augment.cutmix", FIELD(augment.cutmix), "0", real(0, 1000), "",
      "replace a rectangle of each image by another sample's, of an area from Beta(alpha, alpha), and labels in "
      "proportion; 0: off", "cutmix_alpha cut_mix");
  add("augment.mix_probability", FIELD(augment.mix_probability), "1", real(0, 1), "",
      "probability that a sample is mixed, where mixup or cutmix is on", "mixup_prob cutmix_prob");

  add("optim.name", FIELD(optim.name), "adamw", one_of({"sgd", "adamw", "muon"}), "",
      "optimiser; muon takes the matrices and AdamW the rest", "optimizer optimiser opt type");
  add("optim.lr", FIELD(optim.lr), "0.001", real(0, 1000), "",
      "peak learning rate of SGD or AdamW; with muon, of what AdamW takes", "learning_rate base_lr eta");
  add("optim.momentum", FIELD(optim.momentum), "0.9", below(0, 1), "",
      "sgd: momentum");
  add("optim.nesterov", FIELD(optim.nesterov), "false", any(), "",
      "sgd: Nesterov's momentum");
  add("optim.betas", FIELD(optim.betas), "[0.9, 0.999]", list(below(0, 1), 2, 2), "",
      "AdamW: decay of the two moments", "beta beta1 beta2 opt_betas");
  add("optim.eps", FIELD(optim.eps), "1.0e-08", above(0, 1), "",
      "AdamW: added to the root of the second moment", "epsilon opt_eps");
  add("optim.weight_decay", FIELD(optim.weight_decay), "0.05", real(0, 1000), "",
      "decoupled weight decay (matrices and kernels; never norms, biases or positions)", "wd decay l2");
  add("optim.muon_lr", FIELD(optim.muon_lr), "0.02", real(0, 1000), "",
      "muon: peak learning rate of the matrices");
  add("optim.muon_momentum", FIELD(optim.muon_momentum), "0.95", below(0, 1), "",
      "muon: momentum");
  add("optim.muon_weight_decay", FIELD(optim.muon_weight_decay), "0.05", real(0, 1000), "",
      "muon: decoupled weight decay of the matrices");
  add("optim.schedule", FIELD(optim.schedule), "cosine", one_of({"cosine", "linear", "constant"}), "",
      "course of the learning rate after the warm-up", "sched scheduler lr_scheduler");
  add("optim.warmup", FIELD(optim.warmup), "0.05", real(0, 1), "of all steps",
      "linear rise of the learning rate at the start", "warmup_fraction warmup_ratio warmup_epochs warmup_steps");
  add("optim.final_lr", FIELD(optim.final_lr), "0", real(0, 1), "of lr",
      "learning rate at the end", "min_lr lr_min eta_min");
  add("optim.clip_norm", FIELD(optim.clip_norm), "1", real(0, 1e9), "",
      "greatest norm of the whole gradient; 0: off", "clip_grad grad_clip max_grad_norm gradient_clip_val");
  add("optim.layer_decay", FIELD(optim.layer_decay), "1", above(0, 1), "",
      "learning rates fall by this factor from the head to the last block, from block to block, and to the stem", "llrd lr_decay_rate");

  add("train.epochs", FIELD(train.epochs), "10", integer(1, 1000000), "epochs",
      "passes over the training set", "epoch num_epochs max_epochs");
  add("train.seed", FIELD(train.seed), "0", any(), "",
      "of weights, order of samples, augmentation and dropout", "random_seed");
  add("train.device", FIELD(train.device), "auto", {Rule{is_device, "auto, cpu, cuda or cuda:N", {"auto", "cpu", "cuda"}}}, "",
      "auto, cpu, cuda or cuda:N; auto takes a GPU where one is visible", "accelerator gpu gpus");
  add("train.precision", FIELD(train.precision), "float32", one_of({"float32", "tf32", "bfloat16", "float16"}), "",
      "arithmetic; weights stay float32", "dtype amp amp_dtype");
  add("train.threads", FIELD(train.threads), "0", integer(0, 4096), "threads",
      "CPU threads; 0: one for each core; the same number gives the same weights to the bit, another one differs in their "
      "last bits (sums are divided otherwise)", "num_threads");
  add("train.accumulate", FIELD(train.accumulate), "1", integer(1, 65536), "batches",
      "batches whose gradients are added before a step",
      "accumulate_grad_batches grad_accum_steps gradient_accumulation_steps");
  add("train.label_smoothing", FIELD(train.label_smoothing), "0.1", below(0, 1), "",
      "part of the target that is spread over all classes", "smoothing");
  add("train.ema_decay", FIELD(train.ema_decay), "0", below(0, 1), "",
      "moving average of the weights, evaluated beside them; 0: off", "ema model_ema_decay");
  add("train.eval_every", FIELD(train.eval_every), "1", integer(1, 1000000), "epochs",
      "evaluate after every so many epochs (and after the last)", "eval_interval val_interval");
  add("train.checkpoint_every", FIELD(train.checkpoint_every), "1", integer(1, 1000000), "epochs",
      "write a checkpoint after every so many epochs (and after the last)", "save_every save_interval");
  add("train.keep_last", FIELD(train.keep_last), "1", integer(0, 1000000), "checkpoints",
      "checkpoints of single epochs that are kept beside last and best", "checkpoint_hist");
  add("train.log_every", FIELD(train.log_every), "50", integer(1, 1000000000), "steps",
      "log after every so many steps", "log_interval print_freq print_every");
  add("train.on_nonfinite", FIELD(train.on_nonfinite), "stop", one_of({"stop", "skip"}), "",
      "what to do with a step whose loss or gradient is not finite");
  add("train.loss_scale", FIELD(train.loss_scale), "65536", real(1, 16777216), "",
      "precision float16: loss scale at the start", "grad_scale");
  add("train.patience", FIELD(train.patience), "0", integer(0, 1000000), "evaluations",
      "end the run after so many evaluations in a row that bring nothing better; 0: off", "early_stopping early_stop patience_epochs");
  add("train.eval_metric", FIELD(train.eval_metric), "top1", one_of({"top1", "loss"}), "",
      "what makes an epoch the best: the highest top1 (among equals the lowest loss) or the lowest loss of the set that validates", "monitor best_metric");
  add("train.eval_tta", FIELD(train.eval_tta), "none", one_of({"none", "flip", "translate", "flip_translate"}), "",
      "test-time augmentation: evaluate and predict by the mean logits of several views of an image; flip: and mirrored; "
      "translate: and moved by a pixel, up and left, down and right; flip_translate: these and their mirror images",
      "tta test_time_augmentation tta_level");
  add("train.keep_best", FIELD(train.keep_best), "0", integer(0, 1000000), "checkpoints",
      "checkpoints of the best epochs that are kept beside those of keep_last", "save_top_k top_k");
  add("train.init_from", FIELD(train.init_from), "\"\"", any(), "",
      "checkpoint or run whose weights a new run starts from, by name; a head for other classes starts anew, position "
      "tables and biases are interpolated to the image size", "pretrained finetune initial_checkpoint checkpoint");
  add("train.freeze", FIELD(train.freeze), "\"\"", {Rule{is_name_list, "names with commas between, none of them empty"}}, "",
      "parameters that are not trained: names or patterns (* and ?) with commas between, e.g. stem,blocks.0", "freeze_layers frozen");
  add("train.output", FIELD(train.output), "runs", {Rule{is_not_empty, "a folder"}}, "",
      "folder in which run directories are made", "output_dir out_dir log_dir save_dir");
  add("train.tensorboard", FIELD(train.tensorboard), "true", any(), "",
      "write a TensorBoard event file");
  add("train.cuda_graph", FIELD(train.cuda_graph), "true", any(), "",
      "on a GPU, replay the steps of full batches as a CUDA graph, where they can be recorded; changes no result",
      "cuda_graphs use_cuda_graph graphs");
  add("train.detect_anomaly", FIELD(train.detect_anomaly), "false", any(), "",
      "name the first layer whose output or gradient is not finite; looks at every layer of every step, waits for each "
      "and records no CUDA graph: several times slower, for finding a fault", "detect_anomalies anomaly_detection");
  add("train.self_check", FIELD(train.self_check), "auto", one_of({"auto", "always", "never"}), "",
      "before training, compare the kernels with the reference backend on blocks of the model's shapes, forward and "
      "backward; auto: on a GPU", "sanity_check check_kernels");
  return keys;
}
#undef FIELD
// clang-format on

// Keys that a resumed run may change: they do not touch what the updates compute, except in its rounding
// (train.threads, train.device, model.backend), and except train.epochs, which stretches the schedule from there on.
// What differs is said aloud.
constexpr const char* kOnResume[] = {
    "train.epochs",    "train.device",         "train.threads", "train.eval_every",  "train.keep_last",
    "train.log_every", "train.on_nonfinite",   "train.output",  "train.tensorboard", "train.checkpoint_every",
    "train.cuda_graph", "train.detect_anomaly", "train.self_check",
    "data.dir",        "data.eval_batch_size", "model.backend", "data.workers",      "data.prefetch",
    "data.cache",      "data.cache_memory",    "data.cache_dir", "train.patience",   "train.keep_best",
    "data.train_list", "data.test_list"};

// Keys that count when a trained model is evaluated or asked; everything else is in the model.
constexpr const char* kOnEval[] = {"train.device",           "train.threads",
                                   "train.precision",        "train.eval_tta",          "model.backend",
                                   "data.dataset",           "data.dir",
                                   "data.eval_batch_size",   "data.synthetic_train",
                                   "data.synthetic_test",    "data.synthetic_channels",
                                   "data.synthetic_height",  "data.synthetic_width",
                                   "data.synthetic_classes", "data.folder_channels",
                                   "data.folder_height",     "data.folder_width",
                                   "data.train_list",        "data.test_list",
                                   "data.list_outside",      "data.workers",
                                   "data.prefetch",          "data.cache",
                                   "data.cache_memory",      "data.cache_dir"};

// Flags for the keys that people reach for most, in timm's names.
constexpr struct {
  const char *flag, *path;
} kFlags[] = {{"--dataset", "data.dataset"},    {"--data-dir", "data.dir"},
              {"--batch-size", "data.batch_size"}, {"--epochs", "train.epochs"}, {"--lr", "optim.lr"},
              {"--opt", "optim.name"},          {"--weight-decay", "optim.weight_decay"},
              {"--device", "train.device"},     {"--seed", "train.seed"}};

template <std::size_t n>
bool is_one_of(const char* const (&names)[n], const std::string& path) {
  return std::find(std::begin(names), std::end(names), path) != std::end(names);
}

}  // namespace

const std::vector<Key>& schema() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> made = make_schema();
    for (Key& key : made) {
      key.may_change_on_resume = is_one_of(kOnResume, key.path);
      key.may_change_on_eval = is_one_of(kOnEval, key.path);
      for (const auto& [flag, path] : kFlags) {
        if (key.path == path) key.flags.push_back(flag);
      }
    }
    return made;
  }();
  return keys;
}

const Key* find_key(const std::string& path) {
  for (const Key& key : schema()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

}  // namespace axial::app
