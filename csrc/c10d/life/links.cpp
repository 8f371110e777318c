#include "c10d/life/links.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/life/store_bootstrap.h"
#include "core/env.h"
#include "core/wait_warning.h"
#include "transport/tcp/link_forming.h"

namespace fastcomm {

std::shared_ptr<PeerLinks> form_links(int rank, int size, Milliseconds timeout,
                                      const c10::intrusive_ptr<::c10d::Store>& store,
                                      const std::string& label) {
  constexpr Milliseconds kPatience{5000};
  StoreBootstrap own(c10::make_intrusive<::c10d::PrefixStore>("links/", store));
  own.label = label;
  auto peers = connect_links(own, rank, size, deadline_after(timeout), kPatience);
  const std::chrono::duration<double> silence(environment().link_timeout_s);
  auto links =
      std::make_shared<PeerLinks>(rank, std::move(peers), std::chrono::ceil<Milliseconds>(silence));
  std::string missing;
  for (const std::string& each : links->missing()) {
    missing += concat(missing.empty() ? "" : ", ", each);
  }
  if (!missing.empty()) {
    write_warning(label, concat("no TCP connection to ", missing, " could be made within ",
                                kPatience.count() / 1000,
                                " s beside Gloo's, maybe because of a firewall: if such a rank "
                                "ends or is cut off, this rank may learn it late"));
  }
  return links;
}

}  // namespace fastcomm
