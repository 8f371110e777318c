#include "tensors/captures.h"
#if defined(FC_DEVICES)
#include <algorithm>
#include <mutex>
#include <vector>

namespace fastcomm {
namespace {

/// Streams that were captured when an operation was given to them.
class Captured {
 public:
  static Captured& get() {
    static auto& all = *new Captured;
    return all;
  }
  void add(const c10::Stream& stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
      streams_.push_back(stream);
    }
  }
  bool any(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto over = [](const c10::Stream& stream) { return capture_of(stream) == 0; };
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(), over), streams_.end());
    return std::any_of(streams_.begin(), streams_.end(), [device](const c10::Stream& stream) {
      return stream.device_index() == device;
    });
  }

 private:
  std::mutex mutex_;
  std::vector<c10::Stream> streams_;
};

}  // namespace

void note_capture(const c10::Stream& stream) {
  // It could not be asked safely once its owner has destroyed it.
  if (!is_external(stream)) Captured::get().add(stream);
}

bool is_capture_known(int device) { return is_capturing(device) || Captured::get().any(device); }

}  // namespace fastcomm
#endif
