// What must fit together before a run starts: configuration, images, model, checkpoint. Each throws with the words of
// the configuration what would otherwise show in the middle of a run, or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>

#include "app/config/config.h"
#include "app/run/output_file.h"
#include "app/train/build.h"

namespace axial::app {

// data.dir is a folder. Throws data::DataError, and ConfigError where it is missing.
void check_folder(const Config& config);

// Full batches come out of the training images, and a random crop fits into them. Throws ConfigError.
void check_batches(const Config& config, const data::Dataset& train);

// A batch of training or evaluation, as bytes and as float32, fits into `memory` bytes (of the machine: what is larger
// would end the process without a word). Throws ConfigError.
void check_memory(const Config& config, const data::Dataset& train, const data::Dataset& evaluated, double memory);
double machine_memory();

// The same for the model's parameters and their gradients, before the first is made. Throws ConfigError.
void check_model(const AxialClassifierOptions& options, double memory);

// No output lies among the folders that are the classes, where it would become one. Throws ConfigError. `run`: the
// folder of the run that is about to be made, or the one that it will be made in.
void check_output(const Config& config, const std::filesystem::path& run);

// What a run starts from does not lie in the run that it replaces: until its own first checkpoint there would be none.
// Throws ConfigError.
void check_replaced(const Config& config, const std::filesystem::path& run);

// No result is written over a list or a picture of the run's set, nor among its pictures. Throws RunError.
void check_result(const OutputFile& file, const Config& config);

// A set's images and classes are those that a model is trained on. Throws data::DataError.
void check_images(const data::Dataset& set, const ImageSpec& spec);

// A resumed run sees the images that it saw before. Throws CheckpointError. `before`: of the checkpoint at `path`.
void check_same_data(const ImageSpec& before, const ImageSpec& now, const std::filesystem::path& path);

// Batch normalisation needs more than one value a channel: from one it makes no variance but NaN. `grid`: the model's
// tokens, rows and columns. Throws ConfigError.
void check_norm(const Config& config, std::pair<std::int64_t, std::int64_t> grid, std::int64_t train_images);

}  // namespace axial::app
