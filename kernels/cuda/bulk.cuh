// Hopper's bulk copies between global and shared memory, and the barriers that count their bytes (PTX ISA,
// "cp.async.bulk", "mbarrier").
#pragma once

#include <cstdint>

namespace axial::kernels::cuda {

// shared -> global, by one thread; what ordinary stores wrote there needs wgmma_publish() and a barrier before.
__device__ __forceinline__ void bulk_store(void* global, std::uint32_t shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// This thread's stores have read their sources, which may be overwritten.
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// ... and have written their destinations.
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void barrier_init(std::uint32_t address, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t address) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint32_t address, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
}
// Waits until the phase of that parity is complete.
__device__ __forceinline__ void barrier_wait(std::uint32_t address, std::uint32_t parity) {
  asm volatile(
      "{ .reg .pred done; waiting: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra waiting; }" ::
          "r"(address),
      "r"(parity)
      : "memory");
}
// global -> shared; arrives at the barrier with its bytes.
__device__ __forceinline__ void bulk_load(std::uint32_t shared, const void* global, int bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// As barrier of fragment.cuh, but without waiting for the others.
__device__ __forceinline__ void barrier_pass(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// A ring of stages between one loading thread and kConsumers warpgroups, one thread of each of which releases.
template <int kStages, int kConsumers>
struct Ring {
  std::uint32_t barriers;  // full[kStages], empty[kStages], 8 bytes each
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(barriers + 8 * i, 1);
      barrier_init(barriers + 8 * (kStages + i), kConsumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ std::uint32_t full() const { return barriers + 8 * stage; }
  __device__ __forceinline__ std::uint32_t empty() const { return barriers + 8 * (kStages + stage); }
  __device__ __forceinline__ void wait_full() const { barrier_wait(full(), phase); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), phase ^ 1); }
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace axial::kernels::cuda
