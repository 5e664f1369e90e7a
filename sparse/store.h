#pragma once
// The parameter store: every tensor of the model state, as flat arrays over kept elements.
//
//   gradient, master, moment1, moment2   fp32, one slot a kept element, all parameters in backward order
//   dense                                a resident copy in the compute type, zeros where pruned (SAMO);
//                                        vectors (norms, biases) stay fp32
//
// A Parameter is (offset, kept count, shape, index) into the flat arrays; biases and norms have a
// full mask and no index. Because all ranks share the masks, a flat array is an ordinary dense
// vector: one call reduces, clips, steps or saves all parameters. Dense training is the case of
// full masks; then, in fp32, `dense` and `master` are the same memory. Offsets are multiples of
// kAlign elements, the padding stays zero. Source: SAMO (IPDPS 2023), section III.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparse/index.h"
#include "sparse/mask.h"
#include "src/core/arena.h"
#include "src/kernels/kernels.h"

namespace espalier::sparse {

/// How a parameter starts: zeros, ones, or normal numbers of the given standard deviation.
enum class Initial : uint8_t { zeros, ones, normal };

/// What a network declares.
struct ParameterSpec {
  std::string name;
  Shape shape;
  Initial initial = Initial::zeros;
  float deviation = 0;
  bool prunable = false;  ///< by default; configs may exclude more
  bool decay = false;     ///< weight decay applies
};

struct Parameter {
  ParameterSpec spec;
  Index index;
  int64_t offset = 0;  ///< of the first kept element in the flat arrays
  Tensor dense;        ///< [shape], compute type
  Buffer memory;       ///< behind `dense`; empty where `dense` is the master copy itself

  int64_t size() const { return spec.shape.count(); }
  int64_t kept() const { return index.kept(); }
};

struct StoreOptions {
  DType dtype = DType::fp32;  ///< of `dense`
  bool training = true;       ///< false: `dense` only
  int moments = 2;            ///< 2 AdamW, 1 SGD with momentum
  /// The encoding of a parameter's index, by name; empty: best_encoding.
  std::function<Encoding(const std::string&, int64_t size, int64_t kept)> encoding;
};

class Store {
 public:
  static constexpr int64_t kAlign = 16;

  /// `specs` in the order of the forward pass. All masks are full, all values zero.
  Store(Stream& stream, const kernels::Kernels& kernels, std::vector<ParameterSpec> specs,
        const StoreOptions& options);

  /// In forward order. The addresses of parameters never change.
  std::span<Parameter> parameters() { return parameters_; }
  std::span<const Parameter> parameters() const { return parameters_; }
  /// Throws Bug for an unknown name.
  Parameter& find(std::string_view name);
  int64_t total_size() const;  ///< dense elements of all parameters
  int64_t total_kept() const;
  int64_t flat_size() const { return flat_size_; }  ///< kept elements and padding
  const StoreOptions& options() const { return options_; }
  Arena& arena() { return stream_.arena(); }

  /// The flat arrays, [flat_size()].
  Tensor gradient() const { return gradient_.tensor(); }
  Tensor master() const { return master_.tensor(); }
  Tensor moment(int which) const { return moments_.at(static_cast<size_t>(which)).tensor(); }
  /// The part of a flat array that belongs to `parameter`, [kept].
  Tensor part(const Tensor& flat, const Parameter& parameter) const;
  /// The gradient of a parameter that is not pruned, in its own shape.
  Tensor full_gradient(const Parameter& parameter) const;
  /// What kernels read; encodings that they do not know are decoded into a scratch that the next
  /// call reuses.
  kernels::Positions positions(const Parameter& parameter);
  /// Scratch for the dense gradient of one pruned parameter, in its shape.
  Tensor dense_gradient(const Parameter& parameter);

  /// Draws initial values: a pure function of (seed, name, element).
  void initialise(uint64_t seed);
  /// Packed fp32 values of a parameter → master and dense.
  void set_values(Parameter& parameter, std::span<const float> packed);
  /// The packed values: master in training, else gathered from dense.
  std::vector<float> values(const Parameter& parameter);
  /// Writes master into `dense` again (after a load).
  void refresh(Parameter& parameter);

  /// New masks, in forward order of parameters. Survivors keep value and moments; elements that
  /// come back start at zero. Peak memory: the old arrays and one new one.
  void set_masks(std::span<const Mask> masks);
  std::vector<Mask> masks() const;
  /// For dry stores: lays everything out as if `kept` elements of each parameter were kept.
  void plan(std::span<const int64_t> kept);

 private:
  /// A parameter before its mask changed; `values` only in inference.
  struct Before {
    Index index;
    int64_t offset = 0;
    std::vector<float> values;
  };
  void carry(std::span<const Before> before, Buffer& flat, Memory kind, std::string_view name);
  void lay_out();
  void allocate_all();
  void allocate_dense(Parameter& parameter);
  Encoding choose_encoding(const Parameter& parameter, int64_t kept) const;
  Buffer allocate_flat(Memory kind, std::string_view name);

  Stream& stream_;
  const kernels::Kernels& kernels_;
  StoreOptions options_;
  std::vector<Parameter> parameters_;
  int64_t flat_size_ = 0;
  Buffer gradient_, master_;
  std::vector<Buffer> moments_;
  Buffer decoded_;         ///< one index as kernels read it: bitmap words and ranks
  Buffer dense_gradient_;  ///< fp32, the largest pruned parameter so far
};

}  // namespace espalier::sparse
