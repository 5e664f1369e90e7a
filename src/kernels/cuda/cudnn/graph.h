#pragma once
// Graphs of operations as cuDNN is told of them. What it refuses throws Failure with its reason.
#include <array>
#include <span>
#include <string>
#include <vector>

#include "src/kernels/cuda/cudnn/api.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Throws Failure unless `status` is success: "cuDNN, what number: reason".
void check_cudnn(cudnn::Status status, const char* what, int number);

/// Owns one of cuDNN's descriptors.
class CudnnObject {
 public:
  explicit CudnnObject(cudnn::Kind kind);
  ~CudnnObject();
  CudnnObject(CudnnObject&& other) noexcept;
  CudnnObject& operator=(CudnnObject&&) = delete;
  cudnn::Object native() const { return native_; }

  void set(cudnn::Attribute what, bool value) { set_one(what, cudnn::Type::boolean, value); }
  void set(cudnn::Attribute what, int64_t value) { set_one(what, cudnn::Type::int64, value); }
  void set(cudnn::Attribute what, cudnn::Data value) { set_one(what, cudnn::Type::data, value); }
  void set(cudnn::Attribute what, cudnn::Pointwise value) {
    set_one(what, cudnn::Type::pointwise, value);
  }
  void set(cudnn::Attribute what, cudnn::Reduction value) {
    set_one(what, cudnn::Type::reduction, value);
  }
  void set(cudnn::Attribute what, cudnn::Heuristics value) {
    set_one(what, cudnn::Type::heuristics, value);
  }
  void set(cudnn::Attribute what, const CudnnObject& value) {
    set_one(what, cudnn::Type::object, value.native_);
  }
  void set(cudnn::Attribute what, std::span<const int64_t> values) {
    set(what, cudnn::Type::int64, std::ssize(values), values.data());
  }
  void set(cudnn::Attribute what, cudnn::Type type, int64_t count, const void* values);
  /// No more attributes after this.
  void finish();

  /// How many elements the attribute has; up to `room` of them are written to `to`.
  int64_t get(cudnn::Attribute what, cudnn::Type type, int64_t room, void* to) const;

 private:
  template <class T>
  void set_one(cudnn::Attribute what, cudnn::Type type, const T& value) {
    set(what, type, 1, &value);
  }

  cudnn::Kind kind_;
  cudnn::Object native_ = nullptr;
};

/// What plans are for: the device of a handle, or one that is described by JSON, without any.
struct CudnnTarget {
  cudnn::Handle handle = nullptr;
  const CudnnObject* device = nullptr;  ///< when there is no handle
};

/// Extents and strides, in elements, of [sequences, heads, rows, columns].
struct CudnnShape {
  std::array<int64_t, 4> extents, strides;
};

/// Tensors are known by numbers. Those in memory are numbered by the caller, who says where they
/// are when the graph runs; those between operations by the graph, from kFirstBetween.
class CudnnGraph {
 public:
  static constexpr int64_t kFirstBetween = 100;

  /// In the device's memory.
  void tensor(int64_t id, cudnn::Data type, const CudnnShape& shape);
  /// One fp32 number in the host's memory, read when a run is asked for.
  void number(int64_t id);
  /// Nowhere in memory.
  int64_t between(cudnn::Data type, const CudnnShape& shape);

  /// Each gives back the number of its result, y.
  int64_t matmul(int64_t a, int64_t b, int64_t y);
  int64_t reduce(cudnn::Reduction how, int64_t x, int64_t y);
  int64_t reshape(int64_t x, int64_t y);
  int64_t pointwise(cudnn::Pointwise how, int64_t x, int64_t y) {
    return add_pointwise(how, {.x = x}, y);
  }
  int64_t pointwise(cudnn::Pointwise how, int64_t x, int64_t b, int64_t y) {
    return add_pointwise(how, {.x = x, .b = b}, y);
  }
  /// t ? x : b
  int64_t select(int64_t x, int64_t b, int64_t t, int64_t y);
  /// Of each element of x its place along `axis`.
  int64_t index(int64_t x, int64_t axis, int64_t y);

  /// The graph as cuDNN has it.
  CudnnObject finish(const CudnnTarget& target) const;

 private:
  struct Inputs {
    int64_t x, b = 0, t = 0;  ///< 0: none
  };
  struct Named {
    int64_t id;
    cudnn::Data type;
    CudnnObject object;
  };
  int64_t add_pointwise(cudnn::Pointwise how, const Inputs& inputs, int64_t y, int64_t axis = -1);
  void add(int64_t id, cudnn::Data type, CudnnObject tensor);
  const Named& at(int64_t id) const;

  std::vector<Named> tensors_;
  std::vector<CudnnObject> modes_, operations_;
  int64_t next_ = kFirstBetween;
};

/// A plan that is ready to run.
struct CudnnPlan {
  CudnnObject config;  ///< of its engine, which it was made of
  CudnnObject object;
  int64_t engine = 0;    ///< cuDNN's number of what computes it
  size_t workspace = 0;  ///< bytes
};

struct CudnnLimits {
  size_t workspace = 0;       ///< bytes at most
  bool deterministic = true;  ///< no engine that is noted as giving other bits in each run
};

/// By the first within the limits of the engines that cuDNN expects to be fast. Throws Failure when
/// there is none.
CudnnPlan plan_graph(const CudnnObject& graph, const CudnnTarget& target,
                     const CudnnLimits& limits);

/// Where a tensor is.
struct CudnnPlace {
  int64_t id;
  void* data;
};
/// Asks the handle's stream for a run. Throws Failure when cuDNN refuses it.
void run_plan(cudnn::Handle handle, const CudnnPlan& plan, std::span<const CudnnPlace> places,
              void* workspace);

}  // namespace espalier::kernels::ESPALIER_GPU
