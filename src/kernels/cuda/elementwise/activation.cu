#include "src/kernels/cuda/elementwise/activation.h"

#include "src/kernels/cuda/elementwise/elementwise.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Apply : OneToOne {
  Activation kind;

  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const RawQuad& raw) const {
    Quad q = quad_of(x.type, raw);
    for (float& value : q.x) {
      value = activate(kind, value);
    }
    store_quad<kWhole>(y, i, count, q);
  }
};

struct ApplySlope {
  Activation kind;
  Elements dy, x, dx;

  bool aligned() const { return has_whole_quads(dy) && has_whole_quads(x) && has_whole_quads(dx); }
  struct Loaded {
    RawQuad dy, x;
  };
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t count) const {
    return {load_raw<kWhole>(dy, i, count), load_raw<kWhole>(x, i, count)};
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t count, const Loaded& from) const {
    Quad q = quad_of(dy.type, from.dy);
    const Quad at = quad_of(x.type, from.x);
    for (int k = 0; k < 4; ++k) {
      q.x[k] *= activation_slope(kind, at.x[k]);
    }
    store_quad<kWhole>(dx, i, count, q);
  }
};

/// Where element i of a matrix lies in an operand: rows are padded to whole quads, so that a quad
/// never crosses a row.
struct MatrixQuads {
  int64_t cols, padded;

  struct Place {
    int64_t row, column, count;
  };
  __device__ __forceinline__ Place at(int64_t i) const {
    const int64_t row = quotient(i, padded);
    const int64_t column = i - row * padded;
    return {row, column, least(4, cols - column)};
  }
};

/// An operand with its row stride.
struct Rows {
  Elements elements;
  int64_t stride;

  bool aligned() const { return has_whole_quads(elements, stride); }
  template <bool kWhole>
  __device__ __forceinline__ RawQuad load(const MatrixQuads::Place& at) const {
    return load_raw<kWhole>(elements, at.row * stride + at.column, at.count);
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(const MatrixQuads::Place& at, const Quad& q) const {
    store_quad<kWhole>(elements, at.row * stride + at.column, at.count, q);
  }
};
Rows rows_of(const Tensor& t) { return {elements(t), t.stride}; }

struct Gate {
  Activation kind;
  MatrixQuads quads;
  Rows gate, up, y;

  bool aligned() const {
    return quads.cols % 4 == 0 && gate.aligned() && up.aligned() && y.aligned();
  }
  struct Loaded {
    RawQuad gate, up;
  };
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t) const {
    const MatrixQuads::Place at = quads.at(i);
    return {gate.load<kWhole>(at), up.load<kWhole>(at)};
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t, const Loaded& from) const {
    Quad q = quad_of(gate.elements.type, from.gate);
    const Quad factor = quad_of(up.elements.type, from.up);
    for (int k = 0; k < 4; ++k) {
      q.x[k] = activate(kind, q.x[k]) * factor.x[k];
    }
    y.store<kWhole>(quads.at(i), q);
  }
};

struct GateBackward {
  Activation kind;
  MatrixQuads quads;
  Rows dy, gate, up, dgate, dup;

  bool aligned() const {
    return quads.cols % 4 == 0 && dy.aligned() && gate.aligned() && up.aligned() &&
           dgate.aligned() && dup.aligned();
  }
  struct Loaded {
    RawQuad dy, gate, up;
  };
  template <bool kWhole>
  __device__ __forceinline__ Loaded load(int64_t i, int64_t) const {
    const MatrixQuads::Place at = quads.at(i);
    return {dy.load<kWhole>(at), gate.load<kWhole>(at), up.load<kWhole>(at)};
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(int64_t i, int64_t, const Loaded& from) const {
    const Quad d = quad_of(dy.elements.type, from.dy);
    Quad of_gate = quad_of(gate.elements.type, from.gate);
    Quad of_up = quad_of(up.elements.type, from.up);
    for (int k = 0; k < 4; ++k) {
      const rules::Activated both = activate_both(kind, of_gate.x[k]);
      of_gate.x[k] = d.x[k] * of_up.x[k] * both.slope;
      of_up.x[k] = d.x[k] * both.value;
    }
    const MatrixQuads::Place at = quads.at(i);
    dgate.store<kWhole>(at, of_gate);
    dup.store<kWhole>(at, of_up);
  }
};

MatrixQuads quads_of(const Tensor& t) { return {t.cols(), divide_up(t.cols(), 4) * 4}; }

}  // namespace

void activation(Stream& stream, const ActivationArgs& args) {
  for_each_quad("activation", stream, Apply{{elements(args.x), elements(args.y)}, args.kind},
                args.x.count());
}

void activation_backward(Stream& stream, const ActivationBackwardArgs& args) {
  const ApplySlope slope{args.kind, elements(args.dy), elements(args.x), elements(args.dx)};
  for_each_quad("activation_backward", stream, slope, args.x.count());
}

void gated_activation(Stream& stream, const GatedActivationArgs& args) {
  const Gate gate{args.kind, quads_of(args.gate), rows_of(args.gate), rows_of(args.up),
                  rows_of(args.y)};
  for_each_quad("gated_activation", stream, gate, args.gate.rows() * gate.quads.padded);
}

void gated_activation_backward(Stream& stream, const GatedActivationBackwardArgs& args) {
  const GateBackward backward{args.kind,          quads_of(args.gate), rows_of(args.dy),
                              rows_of(args.gate), rows_of(args.up),    rows_of(args.dgate),
                              rows_of(args.dup)};
  for_each_quad("gated_activation_backward", stream, backward,
                args.gate.rows() * backward.quads.padded);
}

}  // namespace espalier::kernels::ESPALIER_GPU
