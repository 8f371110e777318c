#include "ops/addends.h"

#include <ATen/ops/add.h>

#include <string>
#include <utility>

#include "core/error.h"

namespace fastcomm {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string text;
  for (const int64_t extent : tensor.sizes()) text += concat(text.empty() ? "" : "x", extent);
  return text;
}

void check_addend(const at::Tensor& addend, const at::Tensor& first, size_t source) {
  FC_CHECK(addend.sizes() == first.sizes(), "input ", source, " has invalid size: got ",
           shape_text(addend), ", but expected ", shape_text(first));
  FC_CHECK(addend.scalar_type() == first.scalar_type(), "input ", source, " has dtype ",
           addend.scalar_type(), ", but expected ", first.scalar_type());
}

}  // namespace

void check_addends(const std::vector<TensorList>& sources) {
  FC_CHECK(!sources.empty(), "reduce_add: no source");
  const TensorList& first = sources[0];
  for (size_t source = 1; source < sources.size(); ++source) {
    FC_CHECK(sources[source].size() == first.size(), "reduce_add: lists of ", first.size(),
             " and of ", sources[source].size(), " tensors");
    for (size_t i = 0; i < first.size(); ++i) check_addend(sources[source][i], first[i], source);
  }
}

at::Tensor tree_sum(TensorList addends) {
  const at::ScalarType type = addends[0].scalar_type();
  if (type == at::kHalf || type == at::kBFloat16) {
    for (at::Tensor& addend : addends) addend = addend.to(at::kFloat);
  }
  // Pairs, pairs of pairs; an odd one passes up.
  while (addends.size() > 1) {
    TensorList pairs;
    for (size_t i = 0; i + 1 < addends.size(); i += 2) {
      pairs.push_back(at::add(addends[i], addends[i + 1]));
    }
    if (addends.size() % 2 == 1) pairs.push_back(addends.back());
    addends = std::move(pairs);
  }
  return addends[0].to(type);
}

}  // namespace fastcomm
