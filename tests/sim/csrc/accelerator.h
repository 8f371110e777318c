// What the product needs from a device beyond torch's generic classes (tensors/accelerator.h).
//
//   SIM_UNMAPPED  "0-1, 2-3": torch's memory there cannot be mapped for the other device, as if
//                 its allocator is not the caching one
#pragma once

#include <cstring>
#include <string>

#include "memory.h"
#include "tensors/accelerator.h"
#include "tensors/captures.h"

namespace fastcomm {

bool map_for_peers(int device, int peer, std::string& why_not) {
  const char* unmapped = std::getenv("SIM_UNMAPPED");
  for (const auto& pair : {concat(device, "-", peer), concat(peer, "-", device)}) {
    if (unmapped == nullptr || std::strstr(unmapped, pair.c_str()) == nullptr) continue;
    why_not = "the simulated allocator maps nothing for this pair";
    return false;
  }
  return true;
}

uint64_t capture_of(const c10::Stream& stream) {
  const sim::OnDevice on(stream.device_index());
  auto status = cudaStreamCaptureStatusNone;
  unsigned long long number = 0;
  sim::must(cudaStreamGetCaptureInfo(sim::native(stream), &status, &number),
            "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusNone ? 0 : number;
}

bool is_external(const c10::Stream&) { return false; }

std::string device_name(int device) { return concat("simulated accelerator ", device); }

}  // namespace fastcomm
