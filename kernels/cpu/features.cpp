#include "kernels/features.h"

#include <algorithm>

#include "kernels/cpu/work.h"
#include "kernels/philox.h"
#include "kernels/validate.h"

namespace axial::kernels::cpu {

Status feature_mask(std::int64_t tokens, std::int64_t features, const Dropout& dropout, std::uint8_t* keep,
                    const Executor& executor) {
  if (Status status = validate({{tokens, 1, 1}, features}, 1, dropout, keep); !status.ok()) return status;
  if (tokens == 0 || features == 0) return {};
  const DropoutState state = dropout_state(dropout);
  execute(executor, tokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const auto row = static_cast<std::uint64_t>(dropout.first_line + token);
      std::uint8_t* to = keep + token * features;
      for (std::int64_t block = 0; block < features; block += 16) {
        Philox4 draws = {};
        if (state.on) draws = dropout_draws(state.key, row, 0, static_cast<std::uint32_t>(block / 16));
        for (std::int64_t j = block; j < std::min(block + 16, features); ++j) {
          *to++ = !state.on || dropout_keeps(draws, static_cast<std::uint32_t>(j), state.threshold);
        }
      }
    }
  });
  return {};
}

}  // namespace axial::kernels::cpu
