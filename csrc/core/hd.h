// Host and device portability: FC_HD, and the flag operations with their device twins.
//
// All PTX of the project is in this file. A flag is one 32-bit word with one writer; both sides
// always use the full width, because the PTX memory model gives no order to accesses that overlap
// only in part. Flags between devices have system scope (.sys): a narrower scope is wrong between
// two GPUs and looks right on one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/control.h"

#if defined(FC_SHIM)
#include "shim/interleave.h"
#include "shim/shared_memory.h"
#else
#define FC_INTERLEAVE() ((void)0)
#define FC_YIELD(polls) static_cast<void>(polls)
#endif

#if defined(__CUDACC__)
#define FC_HD __host__ __device__ __forceinline__
#define FC_DEVICE __device__ __forceinline__
#define FC_DEVICE_COLD __device__ __noinline__ static
#else
#define FC_HD inline
#define FC_DEVICE inline
#define FC_DEVICE_COLD inline
#endif

/// A condition that the device's compiler may assume.
#if defined(__CUDA_ARCH__)
#define FC_ASSUME(condition) __builtin_assume(condition)
#else
#define FC_ASSUME(condition) ((void)0)
#endif

#if defined(__CUDACC__)
#define FC_UNROLL _Pragma("unroll")
#define FC_NO_UNROLL _Pragma("unroll 1")
#else
#define FC_UNROLL
#define FC_NO_UNROLL
#endif

namespace fastcomm {

/// True if `seen` has reached `target`; counters wrap, so the distance is compared as signed. Holds
/// while two counters are less than 2^31 steps apart.
FC_HD bool reached(uint32_t seen, uint32_t target) {
  return static_cast<int32_t>(seen - target) >= 0;
}

/// Makes every earlier write of this thread (on a device: of the block, after a barrier) visible to
/// a thread that sees `value` through load_flag. Release: nothing earlier moves below the store.
FC_HD void store_flag(uint32_t* flag, uint32_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#else
  FC_INTERLEAVE();
#if defined(FC_SHIM)
  if (shim::SharedMemory* const memory = shim::SharedMemories::find(flag)) {
    return memory->store_flag(flag, value,
                              FC_LEFT_OUT(Control::kWeakenPublish) ? std::memory_order_relaxed
                                                                   : std::memory_order_release);
  }
#endif
  auto* word = reinterpret_cast<std::atomic<uint32_t>*>(flag);
  if (FC_LEFT_OUT(Control::kWeakenPublish)) return word->store(value, std::memory_order_relaxed);
  word->store(value, std::memory_order_release);
#endif
}

/// Reads a flag; everything the writer did before its store_flag is visible afterwards. Acquire:
/// nothing later moves above the load.
FC_HD uint32_t load_flag(const uint32_t* flag) {
#if defined(__CUDA_ARCH__)
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
#else
  FC_INTERLEAVE();
#if defined(FC_SHIM)
  if (shim::SharedMemory* const memory = shim::SharedMemories::find(flag)) {
    return memory->load_flag(flag, FC_LEFT_OUT(Control::kWeakenWait) ? std::memory_order_relaxed
                                                                     : std::memory_order_acquire);
  }
#endif
  const auto* word = reinterpret_cast<const std::atomic<uint32_t>*>(flag);
  if (FC_LEFT_OUT(Control::kWeakenWait)) return word->load(std::memory_order_relaxed);
  return word->load(std::memory_order_acquire);
#endif
}

/// Reads a word and orders nothing: a request to give up, or a poll before load_flag.
FC_HD uint32_t load_relaxed(const uint32_t* word) {
#if defined(__CUDA_ARCH__)
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return reinterpret_cast<const std::atomic<uint32_t>*>(word)->load(std::memory_order_relaxed);
#endif
}

/// Puts `value` into a word that threads of one device share, and returns what was there. Acquire
/// and release, in the scope of that device.
FC_HD uint32_t exchange(uint32_t* word, uint32_t value) {
#if defined(__CUDA_ARCH__)
  uint32_t was;
  asm volatile("atom.acq_rel.gpu.global.exch.b32 %0, [%1], %2;"
               : "=r"(was)
               : "l"(word), "r"(value)
               : "memory");
  return was;
#else
  return reinterpret_cast<std::atomic<uint32_t>*>(word)->exchange(value, std::memory_order_acq_rel);
#endif
}

/// Writes a word that orders nothing. Host only.
inline void store_relaxed(uint32_t* word, uint32_t value) {
  reinterpret_cast<std::atomic<uint32_t>*>(word)->store(value, std::memory_order_relaxed);
}

/// Between the `polls`-th poll of a word and the next one. A short wait never sleeps; a long one
/// sleeps for up to 200 ns, so that its loads take little from the kernels beside it.
FC_HD void back_off(uint32_t polls) {
#if defined(__CUDA_ARCH__)
  constexpr uint32_t kWithoutSleep = 32, kStepNs = 20, kMostNs = 200;
  if (polls <= kWithoutSleep) return;
  const uint32_t steps = polls - kWithoutSleep;
  __nanosleep(steps < kMostNs / kStepNs ? steps * kStepNs : kMostNs);
#else
  FC_YIELD(polls);
#endif
}

/// The same pointer, to memory that other blocks may reach too: neither a block's nor a thread's
/// own. Loads and stores need not find out, which the device's compiler cannot see by itself of an
/// address out of a table.
template <class T>
FC_HD T* global(T* pointer) {
  FC_ASSUME(__isGlobal(pointer));
  return pointer;
}

/// Bits [bits, bits + 32) of the 64 bits (low, high); bits < 32.
FC_HD uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, bits);
#else
  return static_cast<uint32_t>(((static_cast<uint64_t>(high) << 32) | low) >> bits);
#endif
}

#if defined(__CUDA_ARCH__)
/// The device's conversions between fp16 and fp32: subnormals are neither flushed nor lost, and the
/// second rounds to nearest even. core/numeric.h describes NaNs.
FC_DEVICE float half_to_float_device(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
FC_DEVICE uint16_t float_to_half_device(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif

/// Nanoseconds of a clock that never goes back and has an arbitrary zero. A device's clock advances
/// in steps of up to a microsecond.
FC_HD uint64_t clock_ns() {
#if defined(__CUDA_ARCH__)
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#else
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
#endif
}

#if !defined(__CUDA_ARCH__)
/// Publishes a flag on the host for peers that may sleep: a store_flag that also takes part in the
/// single order of sequentially consistent operations (reason: transport/doorbell.h).
inline void publish_flag(uint32_t* flag, uint32_t value) {
  if (FC_LEFT_OUT(Control::kWeakenPublish)) return store_flag(flag, value);
  reinterpret_cast<std::atomic<uint32_t>*>(flag)->store(value, std::memory_order_seq_cst);
}

/// Tells the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}
#endif

}  // namespace fastcomm
