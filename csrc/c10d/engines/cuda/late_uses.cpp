#include "c10d/engines/cuda/late_uses.h"
#if defined(FC_DEVICES)
#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "core/beside_captures.h"

namespace fastcomm {
namespace {

bool overlap(const PoolBlocks::Block& one, const PoolBlocks::Block& other) {
  return one.segment == other.segment && one.offset < other.offset + other.bytes &&
         other.offset < one.offset + one.bytes;
}

/// Marks behind all that the streams have been given; none if one of them is captured, or if its
/// device is lost.
std::optional<std::vector<c10::Event>> ends_of(const std::vector<c10::Stream>& streams) {
  std::vector<c10::Event> ends;
  try {
    for (const c10::Stream& stream : streams) {
      if (capture_of(stream) != 0) return std::nullopt;
    }
    for (const c10::Stream& stream : streams) ends.emplace_back(kAccelerator).record(stream);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return ends;
}

bool has_passed(const c10::Event& event) {
  try {
    const BesideCaptures others(event.device_index());
    return event.query();
  } catch (const std::exception&) {
    return true;  // the device is lost, and its memory with it
  }
}

}  // namespace

void StreamUsers::add(const c10::Stream& stream) {
  if (stream == owner) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
    streams_.push_back(stream);
  }
}

void LateUses::add(Piece piece) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unsettled_.push_back(std::move(piece));
}

std::vector<LateUses::Piece> LateUses::settled() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return settled_locked();
}

std::vector<LateUses::Piece> LateUses::settled_locked() {
  std::vector<Piece> done, rest;
  for (Piece& piece : unsettled_) {
    auto ends = ends_of(piece.users);
    if (!ends) {
      rest.push_back(std::move(piece));
      continue;
    }
    for (c10::Event& end : *ends) uses_.push_back({piece.block, std::move(end)});
    done.push_back(std::move(piece));
  }
  unsettled_ = std::move(rest);
  return done;
}

void LateUses::wait(const PoolBlocks::Block& block, const c10::Stream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // The rest of a use's memory belongs to the same stream, which then has waited for it.
  const auto passed = [&](const Use& use) {
    if (!overlap(use.block, block)) return false;
    use.end.block(stream);
    return true;
  };
  uses_.erase(std::remove_if(uses_.begin(), uses_.end(), passed), uses_.end());
}

bool LateUses::over() {
  const std::lock_guard<std::mutex> lock(mutex_);
  settled_locked();
  const auto passed = [](const Use& use) { return has_passed(use.end); };
  uses_.erase(std::remove_if(uses_.begin(), uses_.end(), passed), uses_.end());
  return unsettled_.empty() && uses_.empty();
}

}  // namespace fastcomm
#endif
