// What the product asks of a device beyond torch's generic classes (tensors/accelerator.h).
//
//   SIM_UNMAPPED  "0-1, 2-3": torch's memory there cannot be mapped for the other device, as where
//                 its allocator is not the caching one
#pragma once

#include <cstring>
#include <string>

#include "memory.h"
#include "tensors/accelerator.h"

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

bool is_capturing(int device) {
  const sim::OnDevice on(device);
  auto status = cudaStreamCaptureStatusNone;
  sim::must(cudaStreamIsCapturing(sim::native(sim::current_stream(device)), &status),
            "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

std::string device_name(int device) { return concat("simulated accelerator ", device); }

}  // namespace fastcomm
