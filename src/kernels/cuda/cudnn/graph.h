#pragma once
// Wrappers of cuDNN's descriptors, operation graphs and execution plans. A request that cuDNN
// refuses throws Failure with cuDNN's reason.
#include <array>
#include <memory>
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
  void set(cudnn::Attribute what, float value) { set_one(what, cudnn::Type::fp32, value); }
  void set(cudnn::Attribute what, cudnn::ConvolutionMode value) {
    set_one(what, cudnn::Type::convolution_mode, value);
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
  /// Finalizes the descriptor; attributes cannot be set afterwards.
  void finish();

  /// Returns the number of elements of the attribute; writes at most `capacity` of them to `to`.
  int64_t get(cudnn::Attribute what, cudnn::Type type, int64_t capacity, void* to) const;

 private:
  template <class T>
  void set_one(cudnn::Attribute what, cudnn::Type type, const T& value) {
    set(what, type, 1, &value);
  }

  cudnn::Kind kind_;
  cudnn::Object native_ = nullptr;
};

/// The device that plans are made for: that of a handle, or one described by JSON without a handle.
struct CudnnTarget {
  cudnn::Handle handle = nullptr;
  const CudnnObject* device = nullptr;  ///< used when `handle` is null
};

/// Extents and strides, in elements, of [sequences, heads, rows, columns], or of [images, channels,
/// rows, columns].
struct CudnnShape {
  std::array<int64_t, 4> extents, strides;
};

/// The result of a convolution: y, or the gradient of x or of the weight.
enum class ConvolutionPart : uint8_t { forward, input, weight };

/// A graph whose tensors are numbered. The caller numbers the tensors in memory and gives their
/// addresses at each run. The graph numbers the tensors between operations, from kFirstBetween.
class CudnnGraph {
 public:
  static constexpr int64_t kFirstBetween = 100;

  /// Adds a tensor in device memory.
  void tensor(int64_t id, cudnn::Data type, const CudnnShape& shape);
  /// Adds one fp32 number in host memory; it is read when a run is enqueued.
  void number(int64_t id);
  /// Adds a virtual tensor, which is not stored in memory; returns its number.
  int64_t between(cudnn::Data type, const CudnnShape& shape);

  /// Each operation returns the number of its result, y; `convolve` that of its part.
  int64_t matmul(int64_t a, int64_t b, int64_t y);
  /// x [images, in, rows, columns], w [out, in, rows, columns], y [images, out, rows, columns];
  /// stride and padding in rows and in columns. A part's own operand is its result.
  int64_t convolve(ConvolutionPart part, int64_t x, int64_t w, int64_t y, int64_t stride,
                   int64_t padding);
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
  /// y = for each element of x, its index along `axis`.
  int64_t index(int64_t x, int64_t axis, int64_t y);

  /// Returns the finalized operation graph.
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

/// An execution plan, ready to run.
struct CudnnPlan {
  CudnnObject config;  ///< the engine configuration that `object` is made of
  CudnnObject object;
  int64_t engine = 0;    ///< cuDNN's number of the engine
  size_t workspace = 0;  ///< bytes
};

/// The plan of a graph, or the reason why there is none.
struct CudnnSupport {
  std::shared_ptr<const CudnnPlan> plan;  ///< null: cuDNN does not support the graph
  std::string why_not;
  std::string of;  ///< the operation and its shape, for record_library_use
};

struct CudnnLimits {
  size_t workspace = 0;                   ///< upper bound, bytes
  std::span<const cudnn::Note> excluded;  ///< no engine with one of these notes
};

/// Plans the graph with the first engine within the limits, in cuDNN's order of expected speed.
/// Throws Failure if none is within them.
CudnnPlan plan_graph(const CudnnObject& graph, const CudnnTarget& target,
                     const CudnnLimits& limits);

/// The address of a tensor.
struct CudnnPlace {
  int64_t id;
  void* data;
};
/// Enqueues a run on the handle's stream. Throws Failure if cuDNN refuses it.
void run_plan(cudnn::Handle handle, const CudnnPlan& plan, std::span<const CudnnPlace> places,
              void* workspace);

}  // namespace espalier::kernels::ESPALIER_GPU
