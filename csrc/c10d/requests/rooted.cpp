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

/// On the host: messages, most of them of no bytes.
void add_messages(const Site& site, const Request& request, const at::Tensor& each,
                  at::TensorList list, Calls& calls) {
  Prepared& made = calls.emplace_back(request.kind, site.place);
  const bool gathers = request.kind == OpKind::kGather;
  const Buffer own = gathers ? made.read(each) : made.write(each);
  made.of(own);
  made.call.root = static_cast<int>(request.root);
  const auto sent = [](const Buffer& buffer) {
    return Messages::Sent{static_cast<const char*>(buffer.data()), buffer.bytes()};
  };
  const auto expected = [](const Buffer& buffer) {
    return Messages::Expected{static_cast<char*>(buffer.data()), buffer.bytes()};
  };
  auto messages = std::make_shared<Messages>(site.size);
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
  if (apart(*messages, site.rank)) return made.exchange(std::move(messages), site.rank);
  calls.pop_back();
  gathers ? add_messages(site, request, each.clone(), list, calls)
          : add_messages(site, request, each, clones(list), calls);
}

#if defined(FC_DEVICES)
/// Where the tensors live.
void add_there(const Site& site, const Request& request, const at::Tensor& each,
               at::TensorList list, Calls& calls) {
  Prepared& made = calls.emplace_back(request.kind, site.place);
  const bool gathers = request.kind == OpKind::kGather;
  const Buffer own = gathers ? made.read(each) : made.write(each);
  made.of(own);
  made.call.root = static_cast<int>(request.root);
  Tensors copies;
  for (const at::Tensor& part : list) {
    // The root's list may lie anywhere: the others do not know where.
    const bool is_here = part.device() == each.device();
    FC_CHECK(is_here || !is_capturing(each.get_device()), made.name(),
             ": a tensor of the root's list is on ", part.device().str(),
             ", where no graph copies");
    const at::Tensor here = is_here ? part : part.to(each.device());
    if (gathers) {
      made.call.outputs.push_back(made.write(here).data());
    } else {
      made.call.inputs.push_back(made.read(here).data());
    }
    copies.push_back(here);
  }
  const bool separate = gathers ? apart(own.data(), made.call.outputs, made.call.bytes(), site.rank)
                                : apart(own.data(), made.call.inputs, made.call.bytes(), site.rank);
  if (!separate) {
    calls.pop_back();
    return gathers ? add_there(site, request, each.clone(), list, calls)
                   : add_there(site, request, each, clones(list), calls);
  }
  gathers ? made.call.input = own.data() : made.call.output = own.data();
  if (!gathers) return;
  made.held.after_write_back = [list = list.vec(), copies] {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!copies[i].is_same(list[i])) list[i].detach().copy_(copies[i]);
    }
  };
}
#endif

void add_rooted(const Site& site, const Request& request, const at::Tensor& each,
                c10::ArrayRef<Tensors> lists, Calls& calls) {
  const at::TensorList list = checked_list(site, request, each, lists);
#if defined(FC_DEVICES)
  if (site.place == Place::kWhereItIs) return add_there(site, request, each, list, calls);
#endif
  add_messages(site, request, each, list, calls);
}

}  // namespace

void add_gather(const Site& site, const Request& request, Calls& calls) {
  add_rooted(site, request, only("gather", request.inputs), request.output_lists, calls);
}

void add_scatter(const Site& site, const Request& request, Calls& calls) {
  add_rooted(site, request, only("scatter", request.outputs), request.input_lists, calls);
}

}  // namespace fastcomm
