// An LSTM's cell, for which torch has one fused operator on every device but the CPU: here done by
// several.
#pragma once

#include <ATen/Functions.h>

#include <optional>
#include <tuple>

namespace sim {

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// The new hidden state, the new cell, and the gates, which the derivative needs.
inline ThreeTensors fused_lstm_cell(const at::Tensor& from_input, const at::Tensor& from_hidden,
                                    const at::Tensor& cell, const std::optional<at::Tensor>& bias,
                                    const std::optional<at::Tensor>& hidden_bias) {
  at::Tensor sums = from_input + from_hidden;
  for (const auto* each : {&bias, &hidden_bias}) {
    if (each->has_value() && (*each)->defined()) sums = sums + **each;
  }
  const auto parts = sums.chunk(4, 1);
  const auto in = parts[0].sigmoid(), forget = parts[1].sigmoid();
  const auto added = parts[2].tanh(), out = parts[3].sigmoid();
  const auto made = forget * cell + in * added;
  return {out * made.tanh(), made, at::cat({in, forget, added, out}, 1)};
}

/// The gradients of the sums, of the former cell, and of a bias.
inline ThreeTensors fused_lstm_cell_backward(const std::optional<at::Tensor>& of_hidden,
                                             const std::optional<at::Tensor>& of_cell,
                                             const at::Tensor& cell, const at::Tensor& made,
                                             const at::Tensor& gates, bool has_bias) {
  const auto or_zeros = [&](const std::optional<at::Tensor>& gradient) {
    return gradient && gradient->defined() ? *gradient : at::zeros_like(made);
  };
  const auto parts = gates.chunk(4, 1);
  const auto &in = parts[0], &forget = parts[1], &added = parts[2], &out = parts[3];
  const auto hidden = or_zeros(of_hidden), bounded = made.tanh();
  const auto of_made = hidden * out * (1 - bounded * bounded) + or_zeros(of_cell);
  const auto of_sums =
      at::cat({of_made * added * in * (1 - in), of_made * cell * forget * (1 - forget),
               of_made * in * (1 - added * added), hidden * bounded * out * (1 - out)},
              1);
  return {of_sums, of_made * forget, has_bias ? of_sums.sum(0) : at::Tensor()};
}

}  // namespace sim
