// A switch with long cables between network namespaces: each frame is delivered a fixed time after
// it was read. For kernels without netem.
//
//   delayed_wire MICROSECONDS INTERFACE...
//
// It makes a TAP device for each name in its own namespace, which whoever started it may move to
// others, says "ready", and ends when its standard input does. Frames may be as long as the kernel
// makes them for hardware that cuts them up. One thread does it all: since every frame takes
// the same time, they leave in the order in which they came.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Address = std::array<unsigned char, 6>;

constexpr size_t kHeader = 10;  // before each frame, of the kernel: virtio_net_hdr
constexpr size_t kLongestFrame = kHeader + 14 + 65536;
/// Bytes under way, beyond which frames wait in their devices.
constexpr size_t kMostUnderWay = size_t{256} << 20;

int checked(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  return result;
}

struct Device {
  int file;
  Address address;
};

Device open_device(const char* name) {
  Device device{checked(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun"), {}};
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  checked(ioctl(device.file, TUNSETIFF, &request), "TUNSETIFF");
  checked(ioctl(device.file, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6), "TUNSETOFFLOAD");
  checked(ioctl(device.file, SIOCGIFHWADDR, &request), "SIOCGIFHWADDR");
  std::memcpy(device.address.data(), request.ifr_hwaddr.sa_data, device.address.size());
  return device;
}

struct Frame {
  Clock::time_point due;
  size_t from;
  std::vector<unsigned char> bytes;
};

class Switch {
 public:
  Switch(std::chrono::microseconds delay, std::vector<Device> devices)
      : delay_(delay), devices_(std::move(devices)) {
    for (const Device& device : devices_) files_.push_back({device.file, POLLIN, 0});
    files_.push_back({STDIN_FILENO, POLLIN, 0});
  }

  void run() {
    while ((files_.back().revents & (POLLIN | POLLHUP | POLLERR)) == 0) {
      wait();
      for (size_t from = 0; from < devices_.size(); ++from) {
        if ((files_[from].revents & POLLIN) != 0) take(from);
      }
      while (!frames_.empty() && frames_.front().due <= Clock::now()) deliver();
    }
  }

 private:
  void wait() {
    for (pollfd& each : files_) each.events = under_way_ < kMostUnderWay ? POLLIN : 0;
    files_.back().events = POLLIN;
    timespec rest{};
    if (!frames_.empty()) {
      const auto left = std::chrono::nanoseconds(frames_.front().due - Clock::now()).count();
      if (left > 0) rest = {left / 1'000'000'000, left % 1'000'000'000};
    }
    const int found =
        ppoll(files_.data(), files_.size(), frames_.empty() ? nullptr : &rest, nullptr);
    if (found < 0 && errno != EINTR) checked(found, "ppoll");
  }

  /// All that has come, but so little that others get their turn.
  void take(size_t from) {
    for (int turn = 0; turn < 16; ++turn) {
      const ssize_t length = read(devices_[from].file, room_.data(), room_.size());
      if (length <= 0) return;  // none, or the device is down
      const auto* const first = room_.data();
      frames_.push_back({Clock::now() + delay_, from, {first, first + length}});
      under_way_ += static_cast<size_t>(length);
    }
  }

  void deliver() {
    const Frame& frame = frames_.front();
    if (frame.bytes.size() >= kHeader + 14) {
      const unsigned char* const to = frame.bytes.data() + kHeader;
      const bool for_all = (to[0] & 1) != 0;
      for (size_t each = 0; each < devices_.size(); ++each) {
        const Device& device = devices_[each];
        if (each == frame.from) continue;
        if (!for_all && std::memcmp(to, device.address.data(), device.address.size()) != 0)
          continue;
        // What a device does not take is lost, as on a cable.
        if (write(device.file, frame.bytes.data(), frame.bytes.size()) < 0) continue;
      }
    }
    under_way_ -= frame.bytes.size();
    frames_.pop_front();
  }

  const std::chrono::microseconds delay_;
  const std::vector<Device> devices_;
  std::vector<pollfd> files_;
  std::vector<unsigned char> room_ = std::vector<unsigned char>(kLongestFrame);
  std::deque<Frame> frames_;
  size_t under_way_ = 0;
};

}  // namespace

int main(int count, char** words) try {
  if (count < 3) throw std::runtime_error("usage: delayed_wire MICROSECONDS INTERFACE...");
  std::vector<Device> devices;
  for (int each = 2; each < count; ++each) devices.push_back(open_device(words[each]));
  // A cable waits for no processor: before all others, as far as that is allowed, and on time.
  const sched_param first{1};
  static_cast<void>(sched_setscheduler(0, SCHED_FIFO, &first));
  static_cast<void>(prctl(PR_SET_TIMERSLACK, 1));
  Switch all(std::chrono::microseconds(std::atol(words[1])), std::move(devices));
  std::puts("ready");
  std::fflush(stdout);
  all.run();
} catch (const std::exception& error) {
  std::fprintf(stderr, "delayed_wire: %s\n", error.what());
  return 1;
}
