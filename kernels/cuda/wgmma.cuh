// Hopper's warpgroup matrix product (PTX ISA, "wgmma.mma_async"): D[64 x N] += A[64 x 16] B[16 x N], 16-bit
// operands, float32 sums. Only for sm_90a.
//
// A warp of the four holds 16 rows of D and, where A comes from registers, of A, in the layouts of mma.sync m16n8k16.
// Operands in shared memory lie in 128-byte rows (64 values) with the 128-byte swizzle, aligned to 1024 bytes: the
// 16-byte group c of row r is stored as group c ^ (r & 7). "K-major": a row holds 64 values along k. "MN-major"
// (the transposed operand): a row holds 64 values along m or n, and the rows go along k.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace axial::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define AXIAL_HAS_WGMMA 1
#else
#define AXIAL_HAS_WGMMA 0
#endif

// The low word of a shared-memory operand's descriptor: the address in units of 16 bytes, and the leading stride: how many
// bytes behind each other blocks of 64 values lie of an MN-major operand that is wider. Steps along k add 2 (K-major,
// 32 bytes) or 128 (MN-major, 16 rows).
__device__ __forceinline__ std::uint32_t wgmma_operand(std::uint32_t shared, int block_stride = 16) {
  return (shared >> 4) | static_cast<std::uint32_t>(block_stride >> 4) << 16;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kInFlight>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kInFlight) : "memory");
}
// After a wait: the compiler may not move readers of the accumulators before it.
template <int kCount>
__device__ __forceinline__ void wgmma_settle(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// What was written to shared memory by ordinary stores becomes visible to wgmma's operands.
__device__ __forceinline__ void wgmma_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// All warps of a warpgroup: from here on each thread has so many registers (PTX ISA, "setmaxnreg"). take waits until others
// have given enough.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// rs: A from registers, B from shared memory; ss: both from shared memory. kTransA/kTransB: MN-major.
// Where `accumulate` is false D is overwritten.
template <class V, int kN>
struct Wgmma;

// The numbers of the operands in the assembler's text, and the operands: 8 k of each (4 for k = 0).
#define AXIAL_R0 "%0, %1, %2, %3"
#define AXIAL_R1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define AXIAL_R2 AXIAL_R1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define AXIAL_R3 AXIAL_R2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define AXIAL_R4 AXIAL_R3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define AXIAL_R5 AXIAL_R4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define AXIAL_R6 AXIAL_R5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define AXIAL_R7 AXIAL_R6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define AXIAL_R8 AXIAL_R7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define AXIAL_R9 AXIAL_R8 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define AXIAL_R10 AXIAL_R9 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define AXIAL_R11 AXIAL_R10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define AXIAL_R12 AXIAL_R11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define AXIAL_D0x(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define AXIAL_D8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define AXIAL_D1x(d) AXIAL_D8(d, 0)
#define AXIAL_D2x(d) AXIAL_D1x(d), AXIAL_D8(d, 8)
#define AXIAL_D3x(d) AXIAL_D2x(d), AXIAL_D8(d, 16)
#define AXIAL_D4x(d) AXIAL_D3x(d), AXIAL_D8(d, 24)
#define AXIAL_D5x(d) AXIAL_D4x(d), AXIAL_D8(d, 32)
#define AXIAL_D6x(d) AXIAL_D5x(d), AXIAL_D8(d, 40)
#define AXIAL_D7x(d) AXIAL_D6x(d), AXIAL_D8(d, 48)
#define AXIAL_D8x(d) AXIAL_D7x(d), AXIAL_D8(d, 56)
#define AXIAL_D9x(d) AXIAL_D8x(d), AXIAL_D8(d, 64)
#define AXIAL_D10x(d) AXIAL_D9x(d), AXIAL_D8(d, 72)
#define AXIAL_D11x(d) AXIAL_D10x(d), AXIAL_D8(d, 80)
#define AXIAL_D12x(d) AXIAL_D11x(d), AXIAL_D8(d, 88)
// The high word of every descriptor: rows of 8 x 128 bytes follow each other at 1024 bytes; 128-byte swizzle.
#define AXIAL_HIGH "0x40000040"

#define AXIAL_WGMMA_TYPE(V, TYPE, N, R, DX, P0, P1, P2, P3, P4, P5, P6, P7)                                          \
  template <>                                                                                                        \
  struct Wgmma<V, N> {                                                                                               \
    template <int kTransB = 0>                                                                                       \
    static __device__ __forceinline__ void rs(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint32_t b,       \
                                              bool accumulate) {                                                     \
      asm volatile("{ .reg .pred p; .reg .b64 y; setp.ne.b32 p, " P5 ", 0; mov.b64 y, {" P4 ", " AXIAL_HIGH "}; "    \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" R "}, {" P0 ", " P1 ", " P2  \
                   ", " P3 "}, y, p, 1, 1, " P6 "; }"                                                                \
                   : DX(d)                                                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(accumulate)),          \
                     "n"(kTransB));                                                                                  \
    }                                                                                                                \
    template <int kTransA, int kTransB>                                                                              \
    static __device__ __forceinline__ void ss(float (&d)[N / 2], std::uint32_t a, std::uint32_t b, bool accumulate) { \
      asm volatile("{ .reg .pred p; .reg .b64 x, y; setp.ne.b32 p, " P2 ", 0; mov.b64 x, {" P0 ", " AXIAL_HIGH       \
                   "}; mov.b64 y, {" P1 ", " AXIAL_HIGH "}; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE    \
                   "." TYPE " {" R "}, x, y, p, 1, 1, " P3 ", " P4 "; }"                                             \
                   : DX(d)                                                                                           \
                   : "r"(a), "r"(b), "r"(static_cast<int>(accumulate)), "n"(kTransA), "n"(kTransB));                 \
    }                                                                                                                \
  };
#define AXIAL_WGMMA(...)                               \
  AXIAL_WGMMA_TYPE(__nv_bfloat16, "bf16", __VA_ARGS__) \
  AXIAL_WGMMA_TYPE(__half, "f16", __VA_ARGS__)

#if AXIAL_HAS_WGMMA || !defined(__CUDA_ARCH__)
AXIAL_WGMMA(8, AXIAL_R0, AXIAL_D0x, "%4", "%5", "%6", "%7", "%8", "%9", "%10", "%11")
AXIAL_WGMMA(32, AXIAL_R2, AXIAL_D2x, "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23")
AXIAL_WGMMA(48, AXIAL_R3, AXIAL_D3x, "%24", "%25", "%26", "%27", "%28", "%29", "%30", "%31")
AXIAL_WGMMA(64, AXIAL_R4, AXIAL_D4x, "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39")
AXIAL_WGMMA(96, AXIAL_R6, AXIAL_D6x, "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55")
AXIAL_WGMMA(128, AXIAL_R8, AXIAL_D8x, "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71")
AXIAL_WGMMA(144, AXIAL_R9, AXIAL_D9x, "%72", "%73", "%74", "%75", "%76", "%77", "%78", "%79")
AXIAL_WGMMA(192, AXIAL_R12, AXIAL_D12x, "%96", "%97", "%98", "%99", "%100", "%101", "%102", "%103")
#endif

#undef AXIAL_WGMMA
#undef AXIAL_WGMMA_TYPE
#undef AXIAL_HIGH

}  // namespace axial::kernels::cuda
