// A part to each rank, from the root; or from each, to the root.
#include <ATen/ATen.h>

#include <memory>

#include "c10d/requests/forms.h"
#include "core/error.h"

namespace fastcomm {
namespace {

/// The root's list; nothing elsewhere.
at::TensorList checked_list(const Site& site, const Request& request, const at::Tensor& each,
                            c10::ArrayRef<Tensors> lists) {
  const char* const name = request.name();
  if (checked_root(name, request.root, site.size) != site.rank) {
    FC_CHECK(lists.empty(), name, ": only the root gives a list of tensors");
    return {};
  }
  FC_CHECK(lists.size() == 1 && static_cast<int>(lists[0].size()) == site.size, name,
           ": the root gives one list of ", site.size, " tensors, one a rank");
  for (int peer = 0; peer < site.size; ++peer) {
    const at::Tensor& tensor = lists[0][peer];
    FC_CHECK(tensor.numel() == each.numel() && tensor.scalar_type() == each.scalar_type(), name,
             ": tensor ", peer, " of the root's list has ", tensor.numel(), " elements of ",
             tensor.scalar_type(), ", the root's own has ", each.numel(), " of ",
             each.scalar_type());
  }
  return lists[0];
}

// Both return true if no memory that is written overlaps memory that is read.

/// On the host: messages, most of them of no bytes.
bool set_messages(const Site& site, const Request& request, const Buffer& own, at::TensorList list,
                  Prepared& made) {
  const auto sent = [](const Buffer& buffer) {
    return Messages::Sent{static_cast<const char*>(buffer.data()), buffer.bytes()};
  };
  const auto expected = [](const Buffer& buffer) {
    return Messages::Expected{static_cast<char*>(buffer.data()), buffer.bytes()};
  };
  auto messages = std::make_shared<Messages>(site.size);
  const bool gathers = request.kind == OpKind::kGather;
  if (gathers) {
    messages->sends[request.root] = sent(own);
  } else {
    messages->receives[request.root] = expected(own);
  }
  for (size_t peer = 0; peer < list.size(); ++peer) {
    if (gathers) {
      messages->receives[peer] = expected(made.write(list[peer]));
    } else {
      messages->sends[peer] = sent(made.read(list[peer]));
    }
  }
  if (!apart(*messages, site.rank)) return false;
  made.exchange(std::move(messages), site.rank);
  return true;
}

#if defined(FC_DEVICES)
/// In the place of the tensors.
bool set_addresses(const Site& site, const Request& request, const Buffer& own, at::TensorList list,
                   Prepared& made) {
  const c10::Device device = own.tensor().device();
  const bool gathers = request.kind == OpKind::kGather;
  Tensors copies;
  for (const at::Tensor& part : list) {
    // The root's list may lie anywhere: the others do not know its place.
    const bool is_here = part.device() == device;
    FC_CHECK(is_here || !is_capturing(device.index()), made.name(),
             ": a tensor of the root's list is on ", part.device().str(),
             ", where no graph copies");
    const at::Tensor here = is_here ? part : part.to(device);
    if (gathers) {
      made.call.outputs.push_back(made.write(here).data());
    } else {
      made.call.inputs.push_back(made.read(here).data());
    }
    copies.push_back(here);
  }
  if (!gathers) {
    made.call.output = own.data();
    return apart(own.data(), made.call.inputs, made.call.bytes(), site.rank);
  }
  made.call.input = own.data();
  made.held.add_steps().after_write_back = [list = list.vec(), copies] {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!copies[i].is_same(list[i])) list[i].detach().copy_(copies[i]);
    }
  };
  return apart(own.data(), made.call.outputs, made.call.bytes(), site.rank);
}
#endif

void add_rooted(const Site& site, const Request& request, const at::Tensor& each,
                at::TensorList list, Calls& calls) {
  Prepared& made = calls.emplace_back(request.kind, site.home);
  const bool gathers = request.kind == OpKind::kGather;
  const Buffer own = gathers ? made.read(each) : made.write(each);
  made.of(own);
  made.call.root = static_cast<int>(request.root);
  auto set = set_messages;
#if defined(FC_DEVICES)
  if (site.home == Home::kTensor) set = set_addresses;
#endif
  if (set(site, request, own, list, made)) return;
  calls.pop_back();
  gathers ? add_rooted(site, request, each.clone(), list, calls)
          : add_rooted(site, request, each, clones(list), calls);
}

}  // namespace

void add_gather(const Site& site, const Request& request, Calls& calls) {
  const at::Tensor& each = only("gather", request.inputs);
  add_rooted(site, request, each, checked_list(site, request, each, request.output_lists), calls);
}

void add_scatter(const Site& site, const Request& request, Calls& calls) {
  const at::Tensor& each = only("scatter", request.outputs);
  add_rooted(site, request, each, checked_list(site, request, each, request.input_lists), calls);
}

}  // namespace fastcomm
