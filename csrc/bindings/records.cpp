// Records of calls: the file that this process writes, and its layout.
#include <unistd.h>

#include <cstddef>

#include "bindings/module.h"
#include "core/records.h"

namespace py = pybind11;

namespace fastcomm {
namespace {

/// The numbers that a reader of the file must have, too.
py::dict layout() {
  using namespace records;
  py::dict numbers;
  numbers["MAGIC"] = kMagic;
  numbers["VERSION"] = kVersion;
  numbers["NAMES_AT"] = offsetof(File, names);
  numbers["GROUPS_AT"] = offsetof(File, groups);
  numbers["CALLS_AT"] = offsetof(File, calls);
  numbers["FILE_BYTES"] = sizeof(File);
  numbers["NUM_GROUPS"] = kGroups;
  numbers["NUM_CALLS"] = kCalls;
  numbers["GROUP_BYTES"] = sizeof(GroupPage);
  numbers["CALL_BYTES"] = sizeof(CallPlace);
  numbers["NUM_MEMBERS"] = kMembers;
  numbers["_CLOCK_AT"] = offsetof(Header, first_ticks);
  numbers["_NEXT_AT"] = offsetof(Header, next);
  numbers["_DROPPED_AT"] = offsetof(Header, dropped);
  numbers["_TEXTS_AT"] = offsetof(GroupPage, name);
  numbers["_TEXT_BYTES"] = kTextBytes;
  numbers["_MEMBERS_AT"] = offsetof(GroupPage, ranks);
  numbers["_OPEN_SEQUENCE"] = kNoSequence;
  numbers["_OUTCOME_BITS"] = kOutcomeBits;
  numbers["FLAG_ASYNC"] = kAsync;
  numbers["FLAG_MESSAGE"] = kMessage;
  return numbers;
}

}  // namespace

void bind_records(pybind11::module_& module) {
  module.def("records_layout", layout);
  module.def("records_fd", []() -> py::object {
    const Records* const records = Records::instance();
    // In a child of fork() the file is its parent's, and not mapped.
    if (records == nullptr || records->file().header.pid != getpid()) return py::none();
    return py::int_(records->fd());
  });
  module.def("why_no_records", [] { return Records::why_not(); });
}

}  // namespace fastcomm
