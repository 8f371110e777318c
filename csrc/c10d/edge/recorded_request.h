// A request in the words of torch's flight recorder and of the program that analyses its dumps
// (torchfrtrace).
#pragma once

#include "c10d/life/flight_recorder.h"
#include "c10d/requests/request.h"

namespace fastcomm {

/// `rank` issues the call, whose timeout is `timeout` unless it has its own.
RecordedCall recorded(const Request& request, int rank, Milliseconds timeout);

}  // namespace fastcomm
