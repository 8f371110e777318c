// One number for everything that two ranks' calls must have in common.
#pragma once

#include <cstdint>

namespace fastcomm {

/// Mixes one more value into `hash`. Constants from splitmix64
/// (https://prng.di.unimi.it/splitmix64.c).
inline uint64_t mix(uint64_t hash, uint64_t value) {
  uint64_t z = hash + value + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace fastcomm
