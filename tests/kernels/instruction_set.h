// Runs a scope of a test with one of the instruction sets that the CPU kernels are compiled for.
#pragma once

#include <cstdint>

#include "kernels/cpu/targets.h"
// After targets.h.
#include "hwy/highway.h"

namespace axial::kernels::testing {

// Restores Highway's own choice of instruction set.
class InstructionSet {
 public:
  explicit InstructionSet(std::int64_t targets) { choose(targets); }
  ~InstructionSet() { choose(0); }
  InstructionSet(const InstructionSet&) = delete;
  InstructionSet& operator=(const InstructionSet&) = delete;

 private:
  static void choose(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().DeInit();
  }
};

// Calls body once for each instruction set that was compiled and that this machine has.
template <class Body>
void for_instruction_sets(const Body& body) {
  const std::int64_t supported = hwy::SupportedTargets() & (HWY_TARGETS);
  for (std::int64_t rest = supported | HWY_STATIC_TARGET; rest != 0; rest &= rest - 1) {
    const InstructionSet scope((rest & -rest) | HWY_STATIC_TARGET);
    body();
  }
}

}  // namespace axial::kernels::testing
