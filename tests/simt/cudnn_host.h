#pragma once
// cuDNN's graph interface on the host, for table "cuda-simt". cudnn_host.cpp has the functions and
// checks descriptors strictly; cudnn_evaluate.cpp computes a graph, operation by operation, when
// the queue runs it.
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "src/kernels/cuda/cudnn/api.h"
#include "tests/simt/queue.h"

namespace espalier::simt {

/// Counters and settings for tests. One thread only.
struct CudnnHost {
  size_t version = 9'19'00;   ///< 0: no cuDNN
  int64_t refused_width = 0;  ///< heads of this many columns, images of this many channels: no plan
  int64_t broken_width = 0;   ///< likewise: a plan whose runs fail
  bool refuses_bias = false;  ///< no plan for convolutions with a bias
  size_t more_workspace = 256;  ///< of a plan, beside gradients of scores or a sum of dq
  int64_t plans = 0, runs = 0;
  int64_t sums_of_dq = 0;  ///< runs of graphs that have a sum of dq
  int64_t tf32_runs = 0;   ///< convolutions that round fp32 operands to TF32
};
CudnnHost& cudnn_host();
/// Restores the state of a new process; also drops plans.
void restart_cudnn_host();

namespace cudnn {

using kernels::cudnn::Attribute;
using kernels::cudnn::Data;
using kernels::cudnn::Kind;
using kernels::cudnn::Type;

struct Descriptor;

/// Elements of an attribute: bytes, or other descriptors.
struct Value {
  Type type = Type::int64;
  int64_t count = 0;
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<Descriptor>> objects;
};

struct Descriptor {
  Kind kind = Kind::tensor;
  bool finished = false;
  std::map<Attribute, Value> values;

  bool has(Attribute what) const { return values.contains(what); }
  template <class T>
  T get(Attribute what, size_t element = 0) const {
    T value;
    std::memcpy(&value, values.at(what).bytes.data() + element * sizeof value, sizeof value);
    return value;
  }
  const Descriptor& object(Attribute what) const { return *values.at(what).objects.front(); }
  /// Extent of a tensor along `axis`.
  int64_t extent(size_t axis) const { return get<int64_t>(Attribute::tensor_dimensions, axis); }
  int64_t stride(size_t axis) const { return get<int64_t>(Attribute::tensor_strides, axis); }
  /// Number `axis` of [rows, columns] of a convolution's stride, padding or dilation.
  int64_t number(Attribute what, size_t axis) const { return get<int64_t>(what, axis); }
  int64_t count() const { return extent(0) * extent(1) * extent(2) * extent(3); }
  bool flag(Attribute what) const { return has(what) && get<bool>(what); }
};

/// Tensors by their ids in a graph.
using Places = std::map<int64_t, void*>;
/// Attributes that name the tensors of an operation; the last is its result.
std::vector<Attribute> operands_of(const Descriptor& operation);
/// The attribute of a convolution that names its strides and paddings.
Attribute mode_of(Kind convolution);
/// True for convolutions and their gradients.
bool is_convolution(Kind kind);
/// Runs the operations of a graph in order; `numbers` are the host's scalars. `tf32`: operands of
/// convolutions are rounded to TF32.
void evaluate(const Descriptor& graph, const Places& places,
              const std::map<int64_t, float>& numbers, bool tf32);

}  // namespace cudnn
}  // namespace espalier::simt
