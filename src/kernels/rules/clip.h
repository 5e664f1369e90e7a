#pragma once
// The arithmetic of ClipArgs (operations/optimizer.h), shared by the host and all tables. It is
// computed in double; norm and factor are then rounded to fp32. The bits are the same everywhere.
#include <limits>

namespace espalier::kernels {

struct Clip {
  float norm = 0;
  float factor = 1;
};

/// Clip of gradients that are `scale` times too large; their norm `raw` is >= 0, infinite or NaN.
constexpr Clip clip_of(double raw, double clip, double scale) {
  const double norm = raw / scale;
  if (!(norm <= std::numeric_limits<double>::max())) {
    return {static_cast<float>(norm), std::numeric_limits<float>::quiet_NaN()};
  }
  const bool clips = clip > 0 && norm > clip;
  return {static_cast<float>(norm),
          static_cast<float>((clips ? clip / (norm + 1e-6) : 1.0) / scale)};
}

}  // namespace espalier::kernels
