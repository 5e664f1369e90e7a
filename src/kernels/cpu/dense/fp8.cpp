// Two passes: the largest magnitude, then encoding and immediate decoding; codes are never stored.
#include "src/kernels/cpu/dense/fp8.h"

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/wire/values.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kPiece = 2048;  ///< values processed at a time
constexpr int64_t kShares = 64;   ///< parts of the rows, measured in parallel
constexpr float kMinScale = 0x1p-126F;

const float* as_floats(const float* x, int64_t /*n*/, float* /*staged*/) { return x; }
template <class Half>
const float* as_floats(const Half* x, int64_t n, float* staged) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    staged[i] = load(x + i);
  }
  return staged;
}

/// Calls body(x, n, row, col) for all pieces of rows [first, end), as fp32.
template <class T, class Body>
void for_pieces(const Tensor& x, int64_t first, int64_t end, const Body& body) {
  float staged[kPiece];
  for (int64_t row = first; row < end; ++row) {
    for (int64_t col = 0; col < x.cols(); col += kPiece) {
      const int64_t n = least(kPiece, x.cols() - col);
      body(as_floats(row_of<T>(x, row) + col, n, staged), n, row, col);
    }
  }
}

/// Calls body(share, first, end) with the rows of each share.
template <class Body>
void for_shares(Stream& stream, const Tensor& x, const Body& body) {
  for_blocks(stream.threads(), kShares, x.count(), [&](int64_t share) {
    body(share, share * x.rows() / kShares, (share + 1) * x.rows() / kShares);
  });
}

template <class T>
Measured measure_all(Stream& stream, const Tensor& x) {
  Measured found[kShares];
  for_shares(stream, x, [&](int64_t share, int64_t first, int64_t end) {
    for_pieces<T>(x, first, end, [&](const float* values, int64_t n, int64_t, int64_t) {
      measure<Find::largest>(values, n, found[share]);
    });
  });
  for (int64_t share = 1; share < kShares; ++share) {
    join(found[0], found[share]);
  }
  return found[0];
}

/// `Numbers` is wire::Fp8Numbers of the format.
template <class T, class Numbers>
void round_all(Stream& stream, const Tensor& x, float scale, const Tensor& to) {
  const typename Numbers::Encoder encoder({1, 1 / scale}, Numbers::kMax);
  const typename Numbers::Decoder decoder(1.0F);
  for_shares(stream, x, [&](int64_t, int64_t first, int64_t end) {
    for_pieces<T>(x, first, end, [&](const float* values, int64_t n, int64_t row, int64_t col) {
      uint8_t codes[kPiece];
      float numbers[kPiece];
      encode_values<false>(encoder, values, n, nullptr, codes);
      decode_values<false>(decoder, codes, n, numbers);
      with_type(to.dtype, [&]<class Out>(Out) {
        Out* const out = row_of<Out>(to, row) + col;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          store(out + i, numbers[i]);
        }
      });
    });
  });
}

float scale_of(const Measured& found, float most) {
  if (wire::is_bad(found)) {
    return not_a_number();
  }
  const float scale = wire::largest_of(found) / most;
  return found.largest == 0 ? 1.0F : scale < kMinScale ? kMinScale : scale;
}

}  // namespace

float round_to_fp8(Stream& stream, const Tensor& x, Float8 format, const Tensor& to) {
  float scale = 1;
  with_type(x.dtype, [&]<class T>(T) {
    const auto round = [&]<class Numbers>(Numbers) {
      scale = scale_of(measure_all<T>(stream, x), Numbers::kMax);
      round_all<T, Numbers>(stream, x, scale, to);
    };
    format == Float8::e5m2 ? round(wire::Fp8Numbers<5>{}) : round(wire::Fp8Numbers<4>{});
  });
  return scale;
}

}  // namespace espalier::kernels::ESPALIER_ISA
