// One policy per arithmetic: how a warp multiplies 16-row tiles that lie in shared memory.
//
// Every policy keeps the accumulator layout of mma.sync m16n8: with g = lane / 4 and t = lane % 4,
//   c[0], c[1]: row g,     columns 2t, 2t+1          c[2], c[3]: row g + 8, columns 2t, 2t+1
// so softmax, masks, dropout and stores are written once for all types. What the operands A [16 x kStep]
// and B [kStep x 8] hold is each policy's own business; the kernels only ever
//   load_a       16 rows x kStep columns of a row-major tile                                    -> A
//   load_a_cols  A[m][k] = tile[k][m]   (products of a transposed tile: dS^T Q, dQ^T z)         -> A
//   load_b_rows  B[k][n] = tile[n][k]   (products with a transposed tile: Q K^T, dO V^T)         -> B, kTiles of them
//   load_b_cols  B[k][n] = tile[k][n]   (products with the tile itself: P V, dS K)               -> B, kTiles of them
//   to_a         kTiles neighbouring accumulator tiles, taken as the next product's A
//   mma          c += A B
// kTiles = kStep / 8. Tiles have rows of kDim + pad(kDim) values; every row starts at 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace axial::kernels::cuda {

// The same number, but unknown to the optimiser: what is computed from it stays where it is written, instead of
// being hoisted out of loops into registers that the accumulators need.
__device__ __forceinline__ int late(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) & 31; }

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Rounded one operation at a time, so that the backward recomputes the forward's logits bit for bit.
__device__ __forceinline__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ __forceinline__ float subtract(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ double subtract(double a, double b) { return __dsub_rn(a, b); }

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ double power_of_two(double x) { return exp2(x); }

// --- 16-bit types: mma.sync m16n8k16, float32 sums ------------------------------------------------

__device__ __forceinline__ std::uint32_t pack(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ __forceinline__ std::uint32_t pack(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

template <class V>
struct Half {
  using Value = V;
  using Acc = float;
  struct A {
    std::uint32_t x[4];  // (g, 2t..), (g+8, 2t..), (g, 2t+8..), (g+8, 2t+8..)
  };
  struct B {
    std::uint32_t x[2];  // k = 2t.., 2t+8..; n = g
  };
  static constexpr int kStep = 16;
  static constexpr int kTiles = 2;
  static constexpr int kHoldDim = 64;  // up to this head dimension a warp keeps its A operand in registers
  // An odd number of 16-byte groups a row: ldmatrix meets no bank twice.
  static constexpr int pad(int) { return 8; }

  static __device__ __forceinline__ float to_acc(V x) { return static_cast<float>(x); }
  static __device__ __forceinline__ V to_value(float x) { return static_cast<V>(x); }

  static __device__ __forceinline__ A load_a(const V* tile, int ld) {
    A a;
    const int lane = lane_id();
    const std::uint32_t address = shared_address(tile + (lane & 15) * ld + (lane >> 4) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.x[0]), "=r"(a.x[1]), "=r"(a.x[2]), "=r"(a.x[3])
                 : "r"(address)
                 : "memory");
    return a;
  }

  static __device__ __forceinline__ A load_a_cols(const V* tile, int ld) {
    A a;
    const int lane = lane_id();
    const std::uint32_t address = shared_address(tile + ((lane & 7) + (lane >> 4) * 8) * ld + ((lane >> 3) & 1) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.x[0]), "=r"(a.x[1]), "=r"(a.x[2]), "=r"(a.x[3])
                 : "r"(address)
                 : "memory");
    return a;
  }

  static __device__ __forceinline__ void load_b_rows(const V* tile, int ld, B (&b)[2]) {
    const int lane = lane_id();
    const std::uint32_t address = shared_address(tile + ((lane & 7) + (lane >> 4) * 8) * ld + ((lane >> 3) & 1) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0].x[0]), "=r"(b[0].x[1]), "=r"(b[1].x[0]), "=r"(b[1].x[1])
                 : "r"(address)
                 : "memory");
  }

  static __device__ __forceinline__ void load_b_cols(const V* tile, int ld, B (&b)[2]) {
    const int lane = lane_id();
    const std::uint32_t address = shared_address(tile + (lane & 15) * ld + (lane >> 4) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0].x[0]), "=r"(b[0].x[1]), "=r"(b[1].x[0]), "=r"(b[1].x[1])
                 : "r"(address)
                 : "memory");
  }

  static __device__ __forceinline__ A to_a(const float (*c)[4]) {
    return {{pack(c[0][0], c[0][1], V{}), pack(c[0][2], c[0][3], V{}), pack(c[1][0], c[1][1], V{}),
             pack(c[1][2], c[1][3], V{})}};
  }
};

struct Bf16 : Half<__nv_bfloat16> {
  static constexpr const char* kName = "bf16 mma.sync m16n8k16";
  static __device__ __forceinline__ void mma(float (&c)[4], const A& a, const B& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  }
};

struct Fp16 : Half<__half> {
  static constexpr const char* kName = "fp16 mma.sync m16n8k16";
  static __device__ __forceinline__ void mma(float (&c)[4], const A& a, const B& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  }
};

// --- Tensor cores with k = 8: TF32 and float64 ----------------------------------------------------

// The order of k inside a step is free as long as A and B agree. Here the hardware's k = t is column 2t
// and k = t + 4 is column 2t + 1: pairs load as one access, and an accumulator tile is an A as it stands.
template <class V, class Pair, class Operand, class Convert>
struct Step8 {
  using Value = V;
  using Acc = V;
  struct A {
    Operand x[4];  // (g, 2t), (g+8, 2t), (g, 2t+1), (g+8, 2t+1)
  };
  struct B {
    Operand x[2];  // k = 2t, 2t+1; n = g
  };
  static constexpr int kStep = 8;
  static constexpr int kTiles = 1;

  static __device__ __forceinline__ V to_acc(V x) { return x; }
  static __device__ __forceinline__ V to_value(V x) { return x; }

  static __device__ __forceinline__ A load_a(const V* tile, int ld) {
    const V* row = tile + (lane_id() >> 2) * ld + (lane_id() & 3) * 2;
    const Pair low = *reinterpret_cast<const Pair*>(row), high = *reinterpret_cast<const Pair*>(row + 8 * ld);
    return {{Convert::of(low.x), Convert::of(high.x), Convert::of(low.y), Convert::of(high.y)}};
  }
  static __device__ __forceinline__ A load_a_cols(const V* tile, int ld) {
    const V* column = tile + (lane_id() & 3) * 2 * ld + (lane_id() >> 2);
    return {{Convert::of(column[0]), Convert::of(column[8]), Convert::of(column[ld]), Convert::of(column[ld + 8])}};
  }
  static __device__ __forceinline__ void load_b_rows(const V* tile, int ld, B (&b)[1]) {
    const Pair pair = *reinterpret_cast<const Pair*>(tile + (lane_id() >> 2) * ld + (lane_id() & 3) * 2);
    b[0] = {{Convert::of(pair.x), Convert::of(pair.y)}};
  }
  static __device__ __forceinline__ void load_b_cols(const V* tile, int ld, B (&b)[1]) {
    const V* column = tile + (lane_id() & 3) * 2 * ld + (lane_id() >> 2);
    b[0] = {{Convert::of(column[0]), Convert::of(column[ld])}};
  }
  static __device__ __forceinline__ A to_a(const V (*c)[4]) {
    return {{Convert::of(c[0][0]), Convert::of(c[0][2]), Convert::of(c[0][1]), Convert::of(c[0][3])}};
  }
};

// Rounded to nearest on the way into a fragment: the tensor core itself would truncate, which is a bias.
struct RoundToTf32 {
  static __device__ __forceinline__ std::uint32_t of(float x) {
    std::uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
  }
};
struct KeepDouble {
  static __device__ __forceinline__ double of(double x) { return x; }
};

struct Tf32Product {
  static constexpr const char* kName = "tf32 mma.sync m16n8k8";
  static constexpr int kHoldDim = 32;
  static constexpr int pad(int) { return 8; }
  template <class A, class B>
  static __device__ __forceinline__ void mma(float (&c)[4], const A& a, const B& b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  }
};
struct Tf32 : Step8<float, float2, std::uint32_t, RoundToTf32>, Tf32Product {};

// The same on tiles whose values were rounded when they were stored (to_tile): rounding takes several instructions.
struct AsTf32 {
  static __device__ __forceinline__ std::uint32_t of(float x) { return __float_as_uint(x); }
};
struct TiledTf32 : Step8<float, float2, std::uint32_t, AsTf32>, Tf32Product {
  static __device__ __forceinline__ float to_tile(float x) { return __uint_as_float(RoundToTf32::of(x)); }
  static __device__ __forceinline__ A to_a(const float (*c)[4]) {
    return {{RoundToTf32::of(c[0][0]), RoundToTf32::of(c[0][2]), RoundToTf32::of(c[0][1]), RoundToTf32::of(c[0][3])}};
  }
};

// Four m8n8k4 products: rows 0-7 and 8-15, columns 2t and then 2t + 1.
struct Fp64 : Step8<double, double2, double, KeepDouble> {
  static constexpr const char* kName = "float64 mma.sync m8n8k4";
  static constexpr int kHoldDim = 16;
  static constexpr int pad(int dim) { return dim >= 256 ? 2 : 8; }  // 256: what 99 KB leave room for
  static __device__ __forceinline__ void quarter(double& c0, double& c1, double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c0), "+d"(c1)
        : "d"(a), "d"(b));
  }
  static __device__ __forceinline__ void mma(double (&c)[4], const A& a, const B& b) {
    quarter(c[0], c[1], a.x[0], b.x[0]);
    quarter(c[2], c[3], a.x[1], b.x[0]);
    quarter(c[0], c[1], a.x[2], b.x[1]);
    quarter(c[2], c[3], a.x[3], b.x[1]);
  }
};

// --- Strict float32: fused multiply-adds ----------------------------------------------------------

// A thread holds all eight k of its two rows and two columns, so that a product is 32 multiply-adds and
// nothing else; lanes that share a row or a column read the same words of shared memory.
struct Fp32 {
  static constexpr const char* kName = "float32 fma";
  using Value = float;
  using Acc = float;
  struct A {
    float x[2][8];  // rows g, g+8
  };
  struct B {
    float x[8][2];  // n = 2t, 2t+1
  };
  static constexpr int kStep = 8;
  static constexpr int kTiles = 1;
  static constexpr int kHoldDim = 0;
  static constexpr int pad(int) { return 4; }

  static __device__ __forceinline__ float to_acc(float x) { return x; }
  static __device__ __forceinline__ float to_value(float x) { return x; }

  static __device__ __forceinline__ void load_eight(float (&x)[8], const float* row) {
    const float4 low = *reinterpret_cast<const float4*>(row), high = *reinterpret_cast<const float4*>(row + 4);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }
  static __device__ __forceinline__ A load_a(const float* tile, int ld) {
    A a;
    const float* row = tile + (lane_id() >> 2) * ld;
    load_eight(a.x[0], row);
    load_eight(a.x[1], row + 8 * ld);
    return a;
  }
  static __device__ __forceinline__ A load_a_cols(const float* tile, int ld) {
    A a;
    const float* column = tile + (lane_id() >> 2);
#pragma unroll
    for (int k = 0; k < 8; ++k) a.x[0][k] = column[k * ld], a.x[1][k] = column[k * ld + 8];
    return a;
  }
  static __device__ __forceinline__ void load_b_rows(const float* tile, int ld, B (&b)[1]) {
    const float* row = tile + (lane_id() & 3) * 2 * ld;
    float first[8], second[8];
    load_eight(first, row);
    load_eight(second, row + ld);
#pragma unroll
    for (int k = 0; k < 8; ++k) b[0].x[k][0] = first[k], b[0].x[k][1] = second[k];
  }
  static __device__ __forceinline__ void load_b_cols(const float* tile, int ld, B (&b)[1]) {
    const float* column = tile + (lane_id() & 3) * 2;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float2 pair = *reinterpret_cast<const float2*>(column + k * ld);
      b[0].x[k][0] = pair.x, b[0].x[k][1] = pair.y;
    }
  }
  static __device__ __forceinline__ A to_a(const float (*c)[4]) {
    A a;
#pragma unroll
    for (int k = 0; k < 8; ++k) {  // column k of the tile is register k % 2 of the quad's lane k / 2
      const int source = (lane_id() & ~3) | (k >> 1);
      a.x[0][k] = __shfl_sync(0xffffffffu, c[0][k & 1], source);
      a.x[1][k] = __shfl_sync(0xffffffffu, c[0][2 + (k & 1)], source);
    }
    return a;
  }
  static __device__ __forceinline__ void mma(float (&c)[4], const A& a, const B& b) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      c[0] = __fmaf_rn(a.x[0][k], b.x[k][0], c[0]);
      c[1] = __fmaf_rn(a.x[0][k], b.x[k][1], c[1]);
      c[2] = __fmaf_rn(a.x[1][k], b.x[k][0], c[2]);
      c[3] = __fmaf_rn(a.x[1][k], b.x[k][1], c[3]);
    }
  }
};

}  // namespace axial::kernels::cuda
