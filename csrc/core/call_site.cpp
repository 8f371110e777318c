#include "core/call_site.h"

#include "core/env.h"
#include "core/utf8.h"

namespace fastcomm {

std::function<std::string()> g_call_site;

std::string call_site() {
  if (!environment().call_sites || !g_call_site) return "";
  constexpr size_t kMost = kSiteBytes - 1;
  const std::string dots = "...";
  std::string site = g_call_site();
  if (site.size() <= kMost) return site;
  return dots + ending_of(site, kMost - dots.size());
}

}  // namespace fastcomm
