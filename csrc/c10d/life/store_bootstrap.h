// c10d's store as the transport's bootstrap.
#pragma once

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "transport/bootstrap.h"

namespace fastcomm {

class StoreBootstrap final : public Bootstrap {
 public:
  /// `look_around`, if given, is called now and then while waiting, and may throw.
  explicit StoreBootstrap(c10::intrusive_ptr<::c10d::Store> store,
                          std::function<void()> look_around = nullptr)
      : store_(std::move(store)), look_around_(std::move(look_around)) {}

  void set(const std::string& key, const std::string& value) override;
  bool has(const std::string& key) override;
  std::string get(const std::string& key, Deadline deadline) override;

 private:
  bool appears(const std::string& key, Deadline deadline);

  c10::intrusive_ptr<::c10d::Store> store_;
  std::function<void()> look_around_;
};

}  // namespace fastcomm
