// Out-of-band messages between ranks with devices: while they agree, and later to add memory.
//
// Only in builds with FC_DEVICES.
#pragma once

#include "c10d/engines/cuda/group_pool.h"
#if defined(FC_DEVICES)
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/engines/native/native_engine.h"

namespace fastcomm {

/// While they agree: in the order of the group's operations on the host.
class FormingOutOfBand final : public OutOfBand {
 public:
  /// `host` outlives this object.
  explicit FormingOutOfBand(NativeEngine& host) : host_(host) {}

  std::vector<std::string> all_gather(const std::string& own) override;

 private:
  void gather(const void* own, void* all, size_t bytes);

  NativeEngine& host_;
};

/// Later: by way of the group's store. So operations on the host, issued meanwhile by another
/// thread, may come in between on one rank and not on another.
class GroupOutOfBand final : public PoolOutOfBand {
 public:
  /// `host` outlives this object; no other user has keys in `store`.
  GroupOutOfBand(NativeEngine& host, c10::intrusive_ptr<::c10d::Store> store)
      : host_(host), store_(std::move(store)) {}

  /// The first rank that knows decides, for all: the last to come, or one that waits no longer.
  bool all_come(uint64_t issued, Milliseconds patience) override;
  /// After all_come(). If it raises, the group is given up.
  std::vector<std::string> all_gather(const std::string& own) override;

 private:
  NativeEngine& host_;
  const c10::intrusive_ptr<::c10d::Store> store_;
  uint64_t issued_ = 0;  // this rank's last number here, and its earlier visits with it
  int times_ = -1;
  std::string front_;  // of the store's keys there
  int exchanges_ = 0;
};

}  // namespace fastcomm
#endif
