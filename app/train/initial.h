// The weights that a new run starts from.
#pragma once

#include <filesystem>
#include <string>

#include "app/train/state.h"

namespace axial::app {

// Takes model weights from another checkpoint (its averages where it has them) by name; shapes must be equal, except
// that
//   head.*                starts anew where the classes differ;
//   row_pos, col_pos      are interpolated to another number of tokens (linearly, tokens standing at their middles);
//   *.row_bias, *.col_bias, *.row_relative_q and its kin (relative positions, 2L-1) likewise, ends on ends, so that no
//                         offset stays no offset.
// Names of one side alone are skipped. Weights that would mean something else here are refused: of other heads, axes
// or activations, or of blocks that would come to another stage. Everything is checked before anything changes.
// Returns what was done, in one line. Throws CheckpointError.
std::string load_initial(const std::filesystem::path& from, const Config& config, const ImageSpec& spec,
                         const NamedTensors& model);

}  // namespace axial::app
