#include "ops/terms.h"

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

void check_term(const at::Tensor& term, const at::Tensor& first, size_t source) {
  FC_CHECK(term.sizes() == first.sizes(), "input ", source, " has invalid size: got ",
           shape_text(term), ", but expected ", shape_text(first));
  FC_CHECK(term.scalar_type() == first.scalar_type(), "input ", source, " has dtype ",
           term.scalar_type(), ", but expected ", first.scalar_type());
}

}  // namespace

void check_terms(const std::vector<TensorList>& sources) {
  FC_CHECK(!sources.empty(), "reduce_add: no source");
  const TensorList& first = sources[0];
  for (size_t source = 1; source < sources.size(); ++source) {
    FC_CHECK(sources[source].size() == first.size(), "reduce_add: lists of ", first.size(),
             " and of ", sources[source].size(), " tensors");
    for (size_t i = 0; i < first.size(); ++i) check_term(sources[source][i], first[i], source);
  }
}

at::Tensor tree_sum(TensorList terms) {
  const at::ScalarType type = terms[0].scalar_type();
  if (type == at::kHalf || type == at::kBFloat16) {
    for (at::Tensor& term : terms) term = term.to(at::kFloat);
  }
  // Pairs, pairs of pairs; an odd one passes up.
  while (terms.size() > 1) {
    TensorList pairs;
    for (size_t i = 0; i + 1 < terms.size(); i += 2) {
      pairs.push_back(at::add(terms[i], terms[i + 1]));
    }
    if (terms.size() % 2 == 1) pairs.push_back(terms.back());
    terms = std::move(pairs);
  }
  return terms[0].to(type);
}

}  // namespace fastcomm
