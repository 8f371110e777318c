// Lists of tensors on CUDA devices, copied and summed by one launch per device: no flat buffers.
//
// The tensors of a result lie in blocks of some megabytes from torch's allocator, each with its own
// version counter. Nothing here is seen by autograd. The order of a sum is that of the fixed tree
// over the sources (core/numeric.h), in the accumulator of the dtype, rounded once.
//
// Streams: everything is enqueued on the current streams of the devices, in order with their
// earlier work (devices/exchange.h), and memory is recorded as used there. No call waits for a
// device, except the first one of a process that brings a pair of devices together: it tries their
// access to each other's memory (devices/peer_access.h).
//
// Every function returns nothing if it cannot do the work: built without CUDA; a tensor that is not
// plain memory of the right device; a dtype without a kernel; more than kMaxLocalRanks devices. The
// caller then does it in another way. Raises Error(kSystem) if CUDA fails. Any thread may call.
#pragma once

#include <optional>
#include <vector>

#include "tensors/plain_tensors.h"

namespace fastcomm {

/// Copies of tensors that lie on devices[0], for each of the later devices: result[k][i] is on
/// devices[k + 1].
std::optional<std::vector<TensorList>> copy_device_lists(const TensorList& tensors,
                                                         const std::vector<int>& devices);

/// Makes copies[k][i], on devices[k + 1], equal to tensors[i] on devices[0]. A copy whose memory is
/// also held elsewhere, or that has another form, is replaced instead of written to. Returns the
/// bytes written, which are all: a host cannot compare a device's memory.
std::optional<int64_t> refresh_device_lists(const TensorList& tensors,
                                            const std::vector<int>& devices,
                                            std::vector<TensorList>& copies);

/// Copies each source to the destination of its place, if all sources or all destinations are on
/// one device: one kernel per device, which pulls. Returns false, with nothing done, also if a pair
/// differs in form or has gaps; if memory that is written overlaps other memory of the call; if a
/// device does not reach another's memory (torch's copies then take no memory of the host); and
/// during captures.
bool send_device_list(const TensorList& sources, const TensorList& destinations);

/// The sums of lists, each of which lies on one device, on `destination`, the device of one of
/// them; divided and scaled before they are rounded (only floating-point ones are scaled). Raises
/// Error(kInvalidArgument) if lists or the shapes or dtypes of a place differ.
std::optional<TensorList> sum_device_lists(const std::vector<TensorList>& sources,
                                           int64_t destination, int divisor = 1, double scale = 1);

}  // namespace fastcomm
