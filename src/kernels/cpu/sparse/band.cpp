#include "src/kernels/cpu/sparse/band.h"

#include "src/kernels/cpu/elementwise/activation.h"
#include "src/kernels/cpu/simd/vector.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// f of each lane.
template <class F>
[[gnu::always_inline]] inline Vector each_lane(Vector x, const F& f) {
  float lanes[kLanes];
  write_vector(lanes, x);
  for (float& lane : lanes) {
    lane = f(lane);
  }
  return read_vector(lanes);
}

/// Part of one row of the result: n <= kLanes features of a token.
template <class F, class In, class Out>
[[gnu::always_inline]] inline void put_out(const Epilogue& e, int64_t token, int64_t feature,
                                           Vector v, int64_t n) {
  Out* out = row_of<Out>(e.out, token) + feature;
  if (e.preactivation) {
    v *= each_lane(read_vector(row_of<In>(e.preactivation, token) + feature, n),
                   [](float x) { return F::slope(x); });
  }
  if (e.bias != nullptr) {
    v += read_vector(e.bias + feature, n);
  }
  if (e.accumulate) {
    v += read_vector(out, n);
  }
  write_vector(out, v, n);
  if (e.activated) {
    write_vector(row_of<In>(e.activated, token) + feature,
                 each_lane(read_vector(out, n), [](float y) { return F::value(y); }), n);
  }
}

/// Transposes the band into the result's rows.
template <class F, class In, class Out>
void put_band(const Epilogue& e, const float* band, const Place& p) {
  constexpr int64_t kAhead = 8 * kLanes;
  for (int64_t lane = 0; lane < p.row; lane += kLanes) {
    const int64_t part = lane / kLanes % p.lane_tokens;
    const int64_t* rows = p.rows + lane - part * kLanes;
    for (int64_t f = 0; f < p.features; f += kLanes) {
      const int64_t width = least(kLanes, p.features - f);
      Vector square[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        square[i] = i < width ? read_vector(band + (f + i) * p.row + lane) : Vector{};
      }
      transpose(square);
      // Rows are pages apart: hardware prefetchers do not follow sixteen at once.
      for (int64_t i = 0; i < kLanes; ++i) {
        const int64_t row = rows[lane_token(p.lane_tokens, part, i)];
        __builtin_prefetch(row_of<Out>(e.out, most(0, row)) + p.feature + f + kAhead, 1);
      }
      for (int64_t i = 0; i < kLanes; ++i) {
        const int64_t row = rows[lane_token(p.lane_tokens, part, i)];
        if (row < 0) {
          continue;
        }
        if (width == kLanes) {
          put_out<F, In, Out>(e, row, p.feature + f, square[i], kLanes);
        } else {
          put_out<F, In, Out>(e, row, p.feature + f, square[i], width);
        }
      }
    }
  }
}

template <class F, class In, class Out>
void put_rows(const Epilogue& e, const float* sums, const RowsPlace& p) {
  for (int64_t i = 0; i < p.tokens; ++i) {
    const float* row = sums + i * p.row;
    int64_t f = 0;
    for (; f + kLanes <= p.features; f += kLanes) {
      put_out<F, In, Out>(e, p.token + i, p.feature + f, read_vector(row + f), kLanes);
    }
    if (f < p.features) {
      put_out<F, In, Out>(e, p.token + i, p.feature + f, read_vector(row + f), p.features - f);
    }
  }
}

/// Calls body with an activation function, and objects of the types of operands and result.
template <class Body>
void with_types(const Epilogue& e, DType in, const Body& body) {
  with_function(e.activation, [&](auto function) {
    with_type(in, [&](auto operand) {
      if (e.out.dtype == DType::fp32) {
        body(function, operand, float{});
      } else {
        body(function, operand, operand);
      }
    });
  });
}

}  // namespace

PutBand put_band_for(const Epilogue& e, DType in) {
  PutBand chosen = nullptr;
  with_types(e, in, [&]<class F, class In, class Out>(F /*f*/, In /*in*/, Out /*out*/) {
    chosen = put_band<F, In, Out>;
  });
  return chosen;
}

PutRows put_rows_for(const Epilogue& e, DType in) {
  PutRows chosen = nullptr;
  with_types(e, in, [&]<class F, class In, class Out>(F /*f*/, In /*in*/, Out /*out*/) {
    chosen = put_rows<F, In, Out>;
  });
  return chosen;
}

}  // namespace espalier::kernels::ESPALIER_ISA
