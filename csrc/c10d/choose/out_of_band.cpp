#include "c10d/choose/out_of_band.h"
#if defined(FC_DEVICES)
#include <algorithm>
#include <optional>
#include <thread>

#include "c10d/life/exception.h"
#include "c10d/life/hooks.h"
#include "c10d/life/store_bootstrap.h"

namespace fastcomm {

std::vector<std::string> FormingOutOfBand::all_gather(const std::string& own) {
  const auto size = static_cast<size_t>(host_.size());
  const uint64_t bytes = own.size();
  std::vector<uint64_t> lengths(size);
  gather(&bytes, lengths.data(), sizeof(bytes));
  const size_t most = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = own, all(size * most, '\0');
  padded.resize(most);
  if (most != 0) gather(padded.data(), all.data(), most);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < size; ++rank) {
    texts.push_back(all.substr(rank * most, lengths[rank]));
  }
  return texts;
}

void FormingOutOfBand::gather(const void* own, void* all, size_t bytes) {
  host_.gather_bytes(own, all, bytes, 0x77d2, "to make windows of devices");
}

bool GroupOutOfBand::all_come(uint64_t issued, Milliseconds patience) {
  times_ = issued == issued_ ? times_ + 1 : 0;
  issued_ = issued;
  front_ = concat("pool/", issued, "/", times_, "/");
  exchanges_ = 0;
  const std::string verdict = front_ + "verdict";
  const auto decide = [&](const std::string& wanted) {
    const std::vector<uint8_t> nothing, own(wanted.begin(), wanted.end());
    const std::vector<uint8_t> said = store_->compareSet(verdict, nothing, own);
    return std::string(said.begin(), said.end()) == "all";
  };
  if (store_->add(front_ + "come", 1) == host_.size()) return decide("all");
  const Deadline end = Clock::now() + patience;
  while (!store_->check({verdict})) {
    if (Clock::now() > end) return decide("not all");
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return decide("");
}

std::vector<std::string> GroupOutOfBand::all_gather(const std::string& own) {
  std::optional<Deadline> gone_since;
  StoreBootstrap told(store_, [&] {
    if (const auto why = host_.group()->stalled("forming", gone_since)) {
      std::rethrow_exception(why);
    }
    if (g_interrupt_check) g_interrupt_check();
  });
  const std::string front = concat(front_, exchanges_++, "/");
  const Deadline end = deadline_after(host_.timeout());
  std::vector<std::string> texts;
  try {
    told.set(front + std::to_string(host_.rank()), own);
    for (int rank = 0; rank < host_.size(); ++rank) {
      texts.push_back(told.get(front + std::to_string(rank), end));
    }
  } catch (const Error& error) {
    if (host_.failure() != nullptr) throw;
    std::rethrow_exception(host_.group()->failed(
        "forming", error.code(),
        concat("ranks make memory for tensors on devices together: ", error.what())));
  } catch (...) {  // Ctrl-C, or the store: the others wait for this rank
    host_.group()->abort(concat("rank ", host_.rank(),
                                " did not get to the end of making memory for tensors: ",
                                what_of(std::current_exception())));
    throw;
  }
  return texts;
}

}  // namespace fastcomm
#endif
