#pragma once
// Cost of each choice (a wire format) for each layer: error_table.h measures it, bit_choice.h reads
// it.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace espalier::parallel {

/// Errors and bytes of each choice (a wire format) for each layer.
struct ChoiceTable {
  int64_t layers = 0;
  int choices = 0;             ///< at most 256
  std::vector<double> error;   ///< [layers][choices] squared L2 norm of the error
  std::vector<int64_t> bytes;  ///< [layers][choices] of a message
  std::vector<int> fixed;      ///< [layers] the only choice of a layer; -1: any. Empty: any for all

  /// Throws Bug unless sizes fit and values are possible. Errors may be missing.
  void check_shape() const;
  /// Throws Bug unless every layer and choice has an error (Inf and NaN allowed).
  void check_errors() const;
  /// Throws Bug unless `seconds` are [layers][choices], finite and not negative.
  void check_seconds(std::span<const double> seconds) const;

  bool is_fixed(int64_t layer) const { return allowed(-1, layer) >= 0; }
  /// `choice`, or the layer's fixed choice.
  int allowed(int choice, int64_t layer) const {
    const int only = fixed.empty() ? -1 : fixed[static_cast<size_t>(layer)];
    return only >= 0 ? only : choice;
  }
  size_t at(int64_t layer, int choice) const {
    return static_cast<size_t>(layer * choices + choice);
  }
};

}  // namespace espalier::parallel
