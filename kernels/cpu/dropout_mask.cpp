// The dropout mask written out, one scalar draw after the other: the plain twin of dropout-inl.h.
#include <cstdint>

#include "kernels/cpu/work.h"
#include "kernels/kernels.h"
#include "kernels/philox.h"
#include "kernels/validate.h"

namespace axial::kernels::cpu {

DropoutState dropout_state(const Dropout& dropout) {
  DropoutState state;
  const DropoutRate rate = dropout_rate(dropout.p);
  state.on = rate.threshold > 0;
  state.threshold = rate.threshold;
  state.scale = rate.scale;
  if (state.on) state.key = dropout_key(dropout.rng[0], dropout.rng[1], dropout.stream);
  return state;
}

Status dropout_mask(const Lines& lines, std::int64_t heads, const Dropout& dropout, std::uint8_t* keep,
                    const Executor& executor) {
  if (Status status = validate(lines, heads, dropout, keep); !status.ok()) return status;
  const std::int64_t length = lines.length;
  if (length == 0) return {};
  const DropoutState state = dropout_state(dropout);
  execute(executor, lines.count() * heads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::uint64_t row = static_cast<std::uint64_t>(dropout.first_line) * static_cast<std::uint64_t>(heads) +
                                static_cast<std::uint64_t>(unit);
      std::uint8_t* to = keep + unit * length * length;
      for (std::int64_t i = 0; i < length; ++i) {
        for (std::int64_t block = 0; block < length; block += 16) {
          Philox4 draws = {};
          if (state.on) {
            draws =
                dropout_draws(state.key, row, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(block / 16));
          }
          for (std::int64_t j = block; j < std::min(block + 16, length); ++j) {
            *to++ = !state.on || dropout_keeps(draws, static_cast<std::uint32_t>(j), state.threshold);
          }
        }
      }
    }
  });
  return {};
}

}  // namespace axial::kernels::cpu
