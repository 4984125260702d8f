// Which instruction sets the CPU kernels are compiled for; include before any Highway header. On x86: AVX-512
// (Skylake's set), AVX2 with FMA, and the baseline; the sets between and beyond bring these loops nothing, and each
// costs a compilation. Scalable vectors (SVE, RISC-V) are left out because tiles hold arrays of vectors.
#pragma once

// 4 and 6: Sapphire Rapids and Zen 4, which have no name in older Highway.
#define HWY_DISABLED_TARGETS                                                                                        \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | (1LL << 4) | (1LL << 6) | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV)
