// One block's part in a meeting of ranks (engines/cuda/meeting.h has the protocol and its
// ordering), for kernels that only meet and for those that do more (engines/cuda/short.cu).
//
// Device code; also compiled for the host, under the execution shim.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "core/control.h"
#include "core/cuda_host.h"
#include "core/hd.h"
#include "core/numeric.h"
#include "core/touches.h"
#include "core/types.h"
#include "core/visit_types.h"
#include "engines/cuda/ends.h"
#include "engines/cuda/meeting_place.h"
#include "kernels/bounded_wait.h"
#include "kernels/channel.h"
#include "kernels/cuda_api.h"

namespace fastcomm {

#if defined(FC_SHIM)
constexpr int kMeetingThreads = 2;  // so that a thread has several peers
#else
constexpr int kMeetingThreads = 32;
#endif

struct MeetingArgs {
  MeetingPlace place;
  WaitBounds bounds;
  CallHeader call;
  bool opens;
};

/// Arguments for the launch that follows.
inline MeetingArgs meeting_args(const MeetingPlace& place, const WaitBounds& bounds,
                                const CallHeader& call, bool opens) {
  MeetingArgs args{place, bounds, call, opens};
  args.place.state = kernel_view(place.state, sizeof(ChannelState), Touch::kWrite);
  return args;
}

/// The same header for every peer: this rank's call.
struct OneCall {
  FC_DEVICE static const CallHeader& to(const MeetingArgs& args, int) { return args.call; }
  FC_DEVICE static bool suits(const MeetingArgs& args, int, const CallHeader& theirs) {
    return same_call(theirs, args.call);
  }
};

/// The line in which `writer` tells `reader` that it has come to a meeting.
FC_DEVICE MeetingLine* line_of(const MeetingArgs& args, int reader, int writer, uint32_t meeting) {
  return args.place.lines[reader] + 2 * writer + (meeting & 1);
}

/// Tells the host the reason, which is in the record but for it, and all peers that this rank has
/// given up.
FC_DEVICE void tell_failure(const MeetingArgs& args, WaitFailure why) {
  store_flag(&args.place.record->wait.failure, static_cast<uint32_t>(why));
  for (int peer = 0; peer < args.place.size; ++peer) {
    if (peer == args.place.rank) continue;
    // In all lines that the peer may look at, in this meeting and in later ones.
    for (uint32_t turn = 0; turn < 2; ++turn) {
      store_flag(&line_of(args, peer, args.place.rank, turn)->has_failed, 1);
    }
  }
}

/// True for the one thread, of any kernel of the channel, that records its failure.
FC_DEVICE bool fails_first(const MeetingArgs& args) {
  return !args.place.guard.is_on || exchange(&args.place.state->failed, 1) == 0;
}

/// For all threads of a kernel, which gets the channel's state; true if it has something to do. A
/// channel that is taken already has failed: then no operation on it goes on.
///
/// Memory ordering. The exchange that takes the channel is an acquire, and sees the release by
/// which the operation before gave it back: so its state is known, though nothing else may order
/// the two. The threads know what the first one does by the barrier. One answer for all threads:
/// another stream may make the channel fail at any time.
FC_DEVICE bool enter_channel(const MeetingArgs& args, ChannelState& state) {
  const ChannelGuard& guard = args.place.guard;
  ChannelState& there = *args.place.state;
  if (!guard.is_on) {
    state = there;  // kernels of one stream write it: the same for all threads, up to a barrier
    return state.failed == 0;
  }
  bool good = true;
  if (threadIdx.x == 0) {
    good = load_relaxed(&there.failed) == 0;
    if (good && guard.takes && exchange(&there.busy, 1) != 0) {
      good = false;
      if (fails_first(args)) {
        args.place.record->own = args.call;
        args.place.record->wait.missing = 0;
        args.place.record->wait.peer = -1;
        tell_failure(args, WaitFailure::kReplays);
      }
    }
  }
  good = __syncthreads_and(good);
  state = ChannelState{there.base, good ? 0u : 1u, there.shorts, 1};
  return good;
}

/// For one thread, in the last kernel of an operation. Release: after the state, for the operation
/// that takes the channel next.
FC_DEVICE void give_channel(const MeetingArgs& args) {
  if (args.place.guard.gives) store_flag(&args.place.state->busy, 0);
}

/// For one thread, after a barrier behind the last use of `state` as it was. A guarded channel's
/// failure stays, whoever has noted it.
FC_DEVICE void leave_channel(const MeetingArgs& args, const ChannelState& met) {
  ChannelState& state = *args.place.state;
  state.base = met.base;
  state.shorts = met.shorts;
  if (!args.place.guard.is_on) state.failed = met.failed;
  give_channel(args);
}

/// Lines are indexed at run time, so they stay in parameter space: a copy would lie in local
/// memory. `Said` holds the messages to peers, and checks theirs.
template <class Said>
class Meeting {
 public:
  FC_DEVICE Meeting(const MeetingArgs& args, const ChannelState& state, const Said& said,
                    bool opens)
      : args_(args), said_(said), opens_(opens), target_(state.base + 1) {}

  FC_DEVICE void say() const {
    each_peer([&](int peer) {
      MeetingLine* const there = line(peer, args_.place.rank, target_);
      if (opens_) {
        FC_THREAD_TOUCHES(&there->call, sizeof(there->call), true);
        there->call = said_.to(args_, peer);
      }
      // Release: after the call, and after all that the stream did before.
      store_flag(&there->flag, target_);
      return true;
    });
  }

  /// False if this thread has not heard from one of its peers, or has heard another call.
  FC_DEVICE bool hear() const {
    return each_peer([&](int peer) {
      MeetingLine* const own = line(args_.place.rank, peer, target_);
      const auto gave_up = [&] { return load_relaxed(&own->has_failed) != 0; };
      const auto hopeless = [&] { return gave_up() || is_given_up(); };
      // Acquire: all that the peer did before is known from here on. A peer that came, but gave up
      // before this rank came, has NaN for results: so has this one.
      return wait_for_flag(&own->flag, target_, args_.bounds, hopeless) && !gave_up() &&
             !differs(peer);
    });
  }

  /// A peer's header. For any thread, after the barrier that follows hear() in an opening meeting.
  FC_DEVICE const CallHeader& said_by(int peer) const {
    const CallHeader& call = line(args_.place.rank, peer, target_)->call;
    FC_THREAD_TOUCHES(&call, sizeof(call), false);
    return call;
  }

  /// The place of an end, as stated by its rank. For any thread, after the barrier that follows
  /// hear().
  FC_DEVICE uint64_t find(const PeerEnd& end, char* const* segments) const {
    const auto stated = [&](const CallHeader& call) {
      return end.is_result ? call.form : call.where;
    };
    uint64_t place = 0;
    if (end.rank == args_.place.rank) {
      place = stated(args_.call);
    } else if (end.rank >= 0) {
      place = stated(said_by(end.rank));
    }
    if (place == 0) return reinterpret_cast<uint64_t>(end.staged);
    const uint64_t segment = (place >> kPlaceBits) - 1;
    const uint64_t offset = place & ((uint64_t{1} << kPlaceBits) - 1);
    char* const begin = global(segments)[segment * args_.place.size + end.rank];
    return reinterpret_cast<uint64_t>(begin) + offset + end.at;
  }

  /// Called by one thread, after a barrier.
  FC_DEVICE void give_up() const {
    if (!fails_first(args_)) return;
    MeetingRecord& record = *args_.place.record;
    WaitFailure why = is_aborted(args_.bounds) ? WaitFailure::kAborted : WaitFailure::kNone;
    uint64_t missing = 0;
    int blamed = -1;
    for (int peer = args_.place.size - 1; peer >= 0; --peer) {
      if (peer == args_.place.rank) continue;
      MeetingLine* const own = line(args_.place.rank, peer, target_);
      // Acquire, and first: a peer that gave up after it came is seen to have come.
      const bool gave_up = load_flag(&own->has_failed) != 0;
      const bool came = reached(load_flag(&own->flag), target_);
      if (!came) missing |= uint64_t{1} << peer;
      if (why == WaitFailure::kAborted) continue;
      WaitFailure of_peer = WaitFailure::kNone;
      if (gave_up) {
        of_peer = WaitFailure::kPeerFailed;
      } else if (!came) {
        of_peer = WaitFailure::kTimeout;
      }
      if (came && differs(peer)) of_peer = WaitFailure::kMismatch;
      // A different call outranks giving up, and that outranks being late.
      if (of_peer == WaitFailure::kNone || rank_of(of_peer) < rank_of(why)) continue;
      why = of_peer;
      blamed = peer;
    }
    if (why == WaitFailure::kMismatch) {
      uint64_t called = 0;
      for (int peer = 0; peer < args_.place.size; ++peer) {
        if (peer == args_.place.rank || (missing >> peer & 1) != 0) continue;
        record.calls[peer] = said_by(peer);
        called |= uint64_t{1} << peer;
      }
      record.called = called;
    }
    record.own = blamed < 0 ? args_.call : said_.to(args_, blamed);
    record.wait.missing = missing;
    record.wait.peer = blamed;
    // A peer came late, after all: the bound ran out nevertheless.
    if (why == WaitFailure::kNone) why = WaitFailure::kTimeout;
    tell_failure(args_, why);
  }

 private:
  FC_DEVICE MeetingLine* line(int reader, int writer, uint32_t meeting) const {
    return line_of(args_, reader, writer, meeting);
  }

  /// Another operation of a guarded channel has met with this one.
  FC_DEVICE bool is_given_up() const {
    return args_.place.guard.is_on && load_relaxed(&args_.place.state->failed) != 0;
  }

  FC_DEVICE static int rank_of(WaitFailure why) {
    return why == WaitFailure::kMismatch     ? 3
           : why == WaitFailure::kPeerFailed ? 2
           : why == WaitFailure::kTimeout    ? 1
                                             : 0;
  }

  /// Visits all of this thread's peers; false if one of the calls was.
  template <class Body>
  FC_DEVICE bool each_peer(const Body& body) const {
    bool good = true;
    for (int peer = static_cast<int>(threadIdx.x); peer < args_.place.size; peer += blockDim.x) {
      if (peer != args_.place.rank) good = body(peer) && good;
    }
    return good;
  }

  FC_DEVICE bool differs(int peer) const {
    if (!opens_ || FC_LEFT_OUT(Control::kBlindMeeting)) return false;
    return !said_.suits(args_, peer, said_by(peer));
  }

  const MeetingArgs& args_;
  const Said said_;
  const bool opens_;
  const uint32_t target_;
};

/// For all threads of a channel that has not failed. `behind` is called if all have met with calls
/// that fit. Returns the state of the channel afterwards.
template <class Said, class Behind>
FC_DEVICE ChannelState meet_once(const MeetingArgs& args, const ChannelState& state,
                                 const Said& said, bool opens, const Behind& behind) {
  const Meeting<Said> meeting(args, state, said, opens);
  meeting.say();
  const bool good = __syncthreads_and(meeting.hear());
  if (good) behind(meeting);
  if (!good && threadIdx.x == 0) meeting.give_up();
  return ChannelState{state.base + 1, good ? 0u : 1u, state.shorts, 0};
}

/// Bits of the dtype's quiet NaN; 0 if it has none.
inline uint64_t nan_of(DType dtype) {
  return for_type<uint64_t>(dtype, [](auto tag) -> uint64_t {
    using T = typename decltype(tag)::Type;
    uint64_t bits = 0;
    if constexpr (is_float_type<T>) {
      const T nan = Numeric<T>::store(std::numeric_limits<typename Numeric<T>::Acc>::quiet_NaN());
      std::memcpy(&bits, &nan, sizeof(T));
    }
    return bits;
  });
}

template <class Word>
FC_DEVICE void fill_words(char* memory, uint64_t count, Word bits) {
  const uint64_t first = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (uint64_t i = first; i < count; i += uint64_t{gridDim.x} * blockDim.x) {
    reinterpret_cast<Word*>(memory)[i] = bits;
  }
}
/// Overwrites elements of `width` bytes, 2, 4 or 8; for all threads of the grid.
FC_DEVICE void spoil(char* memory, uint64_t count, uint32_t width, uint64_t bits) {
  if (width == 2) fill_words(memory, count, static_cast<uint16_t>(bits));
  if (width == 4) fill_words(memory, count, static_cast<uint32_t>(bits));
  if (width == 8) fill_words(memory, count, bits);
}

}  // namespace fastcomm
