// Parameters that stay as they are.
#pragma once

#include <string>

namespace axial {
class AxialClassifierImpl;
}

namespace axial::app {

// `patterns`: names of parameters or modules ("stem", "blocks.0.attention"), or patterns with * and ? of whole names,
// with commas between; those parameters ask for no gradient any more. Throws ConfigError where a pattern fits
// nothing, or nothing is left to train.
void freeze(AxialClassifierImpl& model, const std::string& patterns);

// Training mode, but for batch norms whose parameters are frozen: their running statistics stay as they are, too.
void train_mode(AxialClassifierImpl& model);

}  // namespace axial::app
