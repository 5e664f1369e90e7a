#pragma once
// Rotary positions: queries and keys are rotated by angles proportional to their positions, so that
// their products depend on distances only.
//
//   (x[i], x[i + w/2]) of a head is rotated by position * frequency[i], i < w/2
//   frequency[i] = base^(-2 i / w), changed by a scaling
//   cosines[p, i] = gain cos(p frequency[i]), sines likewise
//
// Angles are computed in double and rounded once to fp32 (transformers computes them in fp32).
// Sources: Su and others, "RoFormer", 2021; Black and others, "GPT-NeoX-20B", 2022 (a share of the
// features). Scalings: see rotary.cpp.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/core/registry.h"

namespace espalier::model {

struct RotaryOptions {
  int64_t width = 0;  ///< w: the first features of a head, even; 0: no rotation
  double base = 10'000;
  int64_t positions = 1;  ///< of the tables
  std::string scaling = "none";
  // Of scalings:
  double factor = 1;    ///< by which the context grows
  int64_t context = 0;  ///< before that; 0: `positions`
  double low = 1;       ///< pairs that turn less often within `context` slow down by `factor`
  double high = 0;      ///< pairs that turn more often do not; 0: the scaling's own number
  double gain = 0;      ///< of cosines and sines; 0: the scaling's own

  bool operator==(const RotaryOptions&) const = default;
};

/// How the frequencies change for contexts longer than those of the first training.
struct RotaryScaling {
  std::string_view name;
  std::string_view help;
  /// Changes `frequencies` [w / 2]; returns the gain that options.gain = 0 stands for.
  double (*apply)(const RotaryOptions& options, std::span<double> frequencies) = nullptr;
};

Registry<RotaryScaling> rotary_scalings();

/// fp32 [positions, w / 2]. Throws Failure for an unknown scaling.
struct RotaryTables {
  std::vector<float> cosines, sines;
};
RotaryTables rotary_tables(const RotaryOptions& options);

}  // namespace espalier::model
