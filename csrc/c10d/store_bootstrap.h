// c10d's store as the transport's bootstrap.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "transport/bootstrap.h"

namespace fastcomm {

class StoreBootstrap final : public Bootstrap {
 public:
  explicit StoreBootstrap(c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override;
  bool has(const std::string& key) override;
  std::string get(const std::string& key, Deadline deadline) override;

 private:
  c10::intrusive_ptr<::c10d::Store> store_;
};

}  // namespace fastcomm
