#pragma once
// The parameter store: every tensor of the model state, as flat arrays over kept elements.
//
//   gradient, value   one slot per kept element, parameters in backward order. `value` is in the
//                     compute type; in fp32 it is the master copy.
//   low               bf16 and fp16: the bits that rounding took from the master copy, so that
//                     value and low together are an exact fp32 number (kernels/rules/master.h).
//                     Without master_copy matrices have none: updates then round `value` at random
//   moment1, moment2  fp32, or 8-bit codes with one scale for 256 elements
//   pruning1, 2       fp32, of pruning methods that learn from every step
//   feedback          optional, fp32: error feedback of codecs for this rank's gradients. It
//                     differs between ranks and is never sharded
//   master            fp32, instead of low, of parameters whose new values are sent in codes
//                     (ZeRO-1): the whole master copy, which `value` follows (changes of
//                     parallel/wire/wire.h)
//
// A Parameter is (offset, kept count, shape, index) into them; biases and norms have a full mask
// and no index. Because all ranks share the masks, a flat array is an ordinary dense vector: one
// call reduces, clips or gathers all parameters. Dense training is the case of full masks. `low`,
// `master`, moments and pruning arrays are held for the owned part of each parameter only, which is
// all of it unless a Sharding says otherwise (ZeRO-1). Offsets are multiples of kAlign elements,
// padding stays zero. The Storage of a parameter decides what is resident beside the flat arrays
// (weight/weight.h). Bytes per original parameter at density f, bf16, AdamW: 2f value, 2f gradient,
// 2f low, 8f moments (2f in 8 bits), the index, and 2 for storage `dense`. Source: SAMO (IPDPS
// 2023), section III.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparse/index/block_list.h"
#include "sparse/index/device_index.h"
#include "sparse/index/index.h"
#include "sparse/index/kept_tiles.h"
#include "sparse/index/mask.h"
#include "sparse/store/expander.h"
#include "sparse/store/gradient_panels.h"
#include "sparse/store/optimizer_arrays.h"
#include "sparse/store/registry.h"
#include "src/core/arena.h"
#include "src/kernels/kernels.h"

namespace espalier::sparse {

/// How a parameter starts: zeros, ones, or normal numbers of the given standard deviation.
enum class Initial : uint8_t { zeros, ones, normal };

/// How a parameter's learning rate and initial values follow the width of its network
/// (src/optim/parametrization.h).
enum class Scaling : uint8_t {
  base,    ///< a fixed number of inputs, or a vector
  hidden,  ///< a matrix whose inputs grow with the width
  logits,  ///< the logits are proportional to it
};

/// A parameter as a network declares it.
struct ParameterSpec {
  std::string name;
  Shape shape;
  Initial initial = Initial::zeros;
  float deviation = 0;
  bool prunable = false;  ///< by default; configs may exclude more
  bool decay = false;     ///< weight decay applies
  bool lookup = false;    ///< rows are looked up (embeddings): always storage dense
  Scaling scaling = Scaling::base;
  int64_t width = 0;                ///< of the network at this place; 0: does not matter
  bool deviation_by_width = false;  ///< `deviation` is proportional to 1 / sqrt(width) already
  /// How a layer multiplies it, for measurements of storages. `rows`: of its product for a sample;
  /// 0: as many as predictions. `window`: of a convolution, the window of its patches.
  int64_t rows = 0;
  std::optional<kernels::Window> window{};
  int64_t groups = 1;  ///< of a convolution: matrices side by side, this one among them
  /// Matrices along the rows, such as queries, keys and values: methods with scores prune them
  /// apart (pruning/parts.h).
  int64_t parts = 1;
  /// A moving average of what layers observe, not of the loss: UpdateRule::average updates it. It
  /// is neither counted nor clipped, decayed, encoded or predicted.
  bool average = false;
  /// Another rank's, read here as well (tied embeddings over a pipeline): held and stepped like any
  /// other, but neither counted nor saved.
  bool borrowed = false;
  /// As a parameter of the network.
  bool counts() const { return !borrowed && !average; }
};

/// A mask as the store holds it.
struct Pattern {
  Index index;
  DeviceIndex device_index;  ///< with a device, where the index is not full
  BlockList blocks;          ///< of pruned weights with storage block, unless blocks are thin
  CsrList csr;               ///< on a device, of pruned weights multiplied element by element
  /// On the CPU, of pruned weights with a storage that keeps forms; with StoreOptions::keep_rows,
  /// of all without a dense copy.
  std::unique_ptr<KeptTiles> tiles;
};

struct Parameter : Pattern {
  ParameterSpec spec;
  Storage storage = Storage::dense;  ///< matters when the index is not full
  int64_t offset = 0;                ///< of the first kept element in gradient and value
  /// [shape]: of an unpruned matrix a view of its values; of a vector an fp32 copy (in fp32 the
  /// values themselves); of a pruned one with storage dense the resident copy; else empty.
  Tensor dense;
  Buffer memory;  ///< behind `dense`, where it is a copy

  int64_t size() const { return spec.shape.count(); }
  int64_t kept() const { return index.kept(); }
  bool full() const { return index.encoding() == Encoding::full; }
  /// `dense` exists and has to follow the values.
  bool copied() const { return static_cast<bool>(memory.tensor()); }
  /// Vectors that are not pruned have an fp32 copy in runs of 16 bits, equal to the master copy.
  bool exact_copy() const { return copied() && spec.shape.rank() == 1 && full(); }
};

/// Parameters [first, end) of a store, in its order.
struct ParameterRange {
  size_t first = 0, end = 0;
};

struct StoreOptions {
  DType dtype = DType::fp32;     ///< of values
  DType gradient = DType::fp32;  ///< fp32, or dtype
  bool training = true;          ///< false: values only
  int moments = 2;               ///< 2 AdamW, 1 SGD with momentum
  int state_bits = 32;           ///< of moments: 32 or 8 (optimizer_arrays.h)
  bool offload = false;          ///< optimizer state of a device in pinned memory of the host
  bool master_copy = true;       ///< false: of matrices in 16 bits no more than their values
  /// The encoding of a parameter's index, by name; empty, or nothing given: best_encoding.
  std::function<std::optional<Encoding>(const std::string&)> encoding;
  /// Groups and blocks that masks may consist of (for encodings nm and block); cols is filled in.
  IndexShape index_shape;
  BlockOptions block;      ///< of storage block
  bool keep_rows = false;  ///< of products with few rows, between calls (kept_tiles.h)
  /// The storage of a pruned parameter, by name; empty: dense.
  std::function<Storage(const std::string&)> storage;
  bool feedback = false;  ///< with the array of error feedback
  /// Arrays of the pruning method for a parameter, 0 to 2 (OptimizerArrays); empty: none.
  std::function<int(const ParameterSpec&)> pruning_arrays;
  /// The shares of the ranks; empty: this rank owns all.
  std::shared_ptr<Sharding> sharding;
  /// Of a sharded store: the matrices whose master copy is separate from values; empty: none.
  std::function<bool(const ParameterSpec&)> separate_master;
  /// The mask that parameter p starts with, called once for each, in order; empty: all are kept. A
  /// store that starts pruned never holds dense state, nor more than one mask.
  std::function<Mask(size_t p)> start;
  /// For dry stores, instead: how many elements of each parameter are kept; empty: all.
  std::vector<int64_t> planned;
};

/// The initial values of the kept elements: a pure function of (seed, name, element), so a mask
/// does not change them.
std::vector<float> initial_values(const ParameterSpec& spec, const Index& index, uint64_t seed,
                                  int threads = 1);

/// Bytes of the model state by part; their sum is what the arena counts as model state.
struct StateParts {
  size_t value = 0;   ///< of kept elements, in the compute type
  size_t copies = 0;  ///< resident dense matrices, and fp32 vectors of runs of 16 bits
  size_t gradient = 0;
  size_t low = 0;     ///< the lower halves of master copies
  size_t master = 0;  ///< master copies separate from values
  size_t moments = 0;
  size_t scales = 0;   ///< of 8-bit moments
  size_t pruning = 0;  ///< arrays of the pruning method
  size_t index = 0;
};

/// Views of the owned part of one parameter, as the fused optimizers take them (kernels.h).
struct OptimizerState {
  Tensor gradient, value, low, moment1, moment2, scale1, scale2;
  Tensor pruning1, pruning2;  ///< fp32; empty unless the pruning method has them
  bool separate_master =
      false;          ///< `value` is the master copy, separate from the values that compute reads
  int64_t first = 0;  ///< number of the first one among the kept elements of the parameter
};

class Store {
 public:
  static constexpr int64_t kAlign = 16;

  /// `specs` in the order of the forward pass. All values are zero.
  Store(Stream& stream, const kernels::Kernels& kernels, std::vector<ParameterSpec> specs,
        const StoreOptions& options);

  /// In forward order. The addresses of parameters never change.
  std::span<Parameter> parameters() { return parameters_; }
  std::span<const Parameter> parameters() const { return parameters_; }
  /// Throws Bug for an unknown name.
  Parameter& find(std::string_view name);
  /// Dense elements of all parameters but borrowed ones and moving averages.
  int64_t total_size() const;
  int64_t total_kept() const;
  int64_t largest_kept() const;                     ///< of one parameter
  int64_t flat_size() const { return flat_size_; }  ///< kept elements and padding
  StateParts parts() const;
  /// Grows with every change of masks, storages or addresses, which invalidates captured graphs.
  int64_t changes() const { return changes_ + expander_.grown() + panels_.grown(); }
  const StoreOptions& options() const { return options_; }
  Stream& stream() const { return stream_; }
  Arena& arena() const { return stream_.arena(); }

  /// The flat arrays, [flat_size()].
  Tensor gradient() const { return gradient_.tensor(); }
  Tensor value() const { return value_.tensor(); }
  /// fp32, of this rank only; empty without StoreOptions::feedback.
  Tensor feedback() const { return feedback_.tensor(); }
  /// Codecs read and write `feedback` and `master`, which are in memory of the host until this call
  /// moves them to the device, where codecs run from then on. Offloaded master copies stay.
  void move_codecs_to_device();
  /// The part of a flat array that belongs to `parameter`, [kept].
  Tensor part(const Tensor& flat, const Parameter& parameter) const;
  /// The gradient of a parameter that is not pruned, in its own shape.
  Tensor full_gradient(const Parameter& parameter) const;
  /// For one optimizer step of `parameter`; with 8-bit moments their scales as well.
  OptimizerState state(const Parameter& parameter) const;
  /// The kept elements of a parameter that each rank owns; empty when not sharded.
  std::span<const Range> shares(const Parameter& parameter) const;
  /// In the form that kernels read; compressed indices are decoded into one scratch, valid until
  /// the positions of another parameter are read.
  kernels::Positions positions(const Parameter& parameter);
  bool decodes_positions(const Parameter& parameter) const {  ///< whether into that scratch
    return !parameter.device_index && parameter.index.scratch_bytes() > 0;
  }
  /// fp32 numbers in kernels' memory that layers read and no step changes, such as tables of rotary
  /// positions. The first call for a name allocates them, category `activation`, and `make` returns
  /// them; later calls return the same memory. Dry stores hold no numbers.
  Tensor constant(const std::string& name, const Shape& shape,
                  const std::function<std::vector<float>()>& make);
  /// Scratch for dense gradients of pruned parameters.
  GradientPanels& panels() { return panels_; }
  /// The dense matrix in scratch, compute type: valid until the next call.
  Tensor expand(const Parameter& parameter);
  /// A forward or backward of some layers. While it lives, values do not change, `expand` may
  /// prefetch (expander.h) and a side stream may gather gradients (gradient_panels.h; until
  /// `panels().join()`). Passes with the same `key` read their weights in the same order.
  class Pass {
   public:
    Pass(Store& store, int key) : store_(store) {
      store_.expander_.begin_pass(key);
      store_.panels_.begin_pass();
    }
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Store& store_;
  };
  /// While a probe is set, backward calls it with the dense gradient of each probed weight (fp32,
  /// in its shape; the call may overwrite it) and writes none of them to the flat array. Needs the
  /// scratch of one layer, in every storage. Empty: off.
  using GradientProbe = std::function<void(const Parameter&, const Tensor& gradient)>;
  enum class Probed : uint8_t {
    pruned,    ///< weights that are pruned now
    prunable,  ///< all weights that the model marks as prunable
  };
  void set_gradient_probe(GradientProbe probe, Probed probed = Probed::pruned);
  bool probes(const Parameter& parameter) const {
    return gradient_probe_ &&
           (probed_ == Probed::prunable ? parameter.spec.prunable : !parameter.full());
  }
  const GradientProbe& gradient_probe() const { return gradient_probe_; }

  /// Draws the initial values of all parameters, each times `factor` of it; empty: 1.
  void initialise(uint64_t seed, const std::function<double(const Parameter&)>& factor = {});
  /// Packed fp32 values of a parameter → values, low, master and dense.
  void set_values(Parameter& parameter, std::span<const float> packed);
  /// Sets only the values, rounded, of a matrix whose master copy is separate.
  void set_common(Parameter& parameter, std::span<const float> packed);
  /// The packed values that compute reads.
  std::vector<float> values(const Parameter& parameter);
  /// The packed master copy: exact. Collective when sharded.
  std::vector<float> master(const Parameter& parameter);
  /// The packed moments as fp32. Collective when sharded.
  std::vector<float> moment(const Parameter& parameter, int which);
  void set_moment(const Parameter& parameter, int which, std::span<const float> packed);
  /// Arrays of the pruning method that `parameter` has.
  int pruning_arrays(const Parameter& parameter) const;
  /// One of them, packed. Collective when sharded.
  std::vector<float> pruning_array(const Parameter& parameter, int which);
  void set_pruning_array(const Parameter& parameter, int which, std::span<const float> packed);
  /// Writes values into `dense` where that is a copy.
  void refresh(Parameter& parameter);
  /// The same for all parameters, after the values of other ranks have come. Collective when
  /// sharded: in 16-bit runs, fp32 copies of norms and biases are gathered separately.
  void refresh_all();

  /// New masks, in forward order of parameters. Survivors keep value and moments; elements that
  /// come back start at zero, their second moment at the parameter's mean (masks.cpp). Peak
  /// memory: the old arrays and one new one. Collective when sharded. Throws Failure, and changes
  /// nothing, when a parameter's storage cannot hold its mask.
  void set_masks(std::span<const Mask> masks);
  /// As a new store with these masks: values and state are zero. Not collective, and without the
  /// extra memory of carrying anything over. Throws as set_masks does.
  void restart(std::span<const Mask> masks);
  std::vector<Mask> masks() const;
  /// Changes the storage of a pruned parameter; values stay. Throws Failure, and changes nothing,
  /// when that storage cannot hold its mask.
  void set_storage(Parameter& parameter, const Storage& storage);

  // For dry stores:

  /// The allocations of `set_masks`, heap included, for masks that keep so many elements of each
  /// parameter.
  void plan(std::span<const int64_t> kept);
  /// The heap of the functions above that read or write one parameter as fp32 numbers.
  void plan_copies() const { arena().note_heap(copy_bytes()); }
  /// The scratch in which a device codes and decodes moments for the host; empty: it needs none.
  Buffer plan_moment_copy() const;
  /// Bytes on the host of the present and of the new masks while they change.
  size_t mask_bytes() const { return 2 * static_cast<size_t>(total_size()) / 8; }

 private:
  /// A parameter before its mask changed.
  struct Before {
    Index index;
    int64_t offset = 0;
  };
  /// Positions and values of one parameter, before and after a change; or four arrays of its
  /// numbers.
  size_t copy_bytes() const { return 4 * sizeof(float) * static_cast<size_t>(largest_kept()); }
  void allocate_all();
  std::vector<MasterCopy> master_copies() const;
  std::vector<Extent> lay_out();
  Buffer allocate_flat(Memory kind, std::string_view name, DType dtype);
  Buffer allocate_feedback();
  Tensor scratch(Buffer& buffer, std::string_view name, DType dtype, const Shape& shape);
  /// A mask to come; null in dry stores, where only the number of kept elements is known.
  struct NextMask {
    const Mask* mask;
    int64_t kept;
  };
  CsrList csr_list(const Parameter& parameter, const Pattern& pattern) const;
  std::unique_ptr<KeptTiles> kept_tiles(const Parameter& parameter, const Pattern& pattern);
  void allocate_copy(Parameter& parameter);
  Index make_index(const Parameter& parameter, const NextMask& next, const BlockSize& block) const;
  BlockList make_blocks(const Parameter& parameter, const NextMask& next) const;
  Pattern make_pattern(const Parameter& parameter, const NextMask& next);
  std::vector<Pattern> make_patterns(std::span<const Mask> masks);
  void move_to(std::vector<Pattern> patterns);
  void carry_values(std::span<const Before> before);
  Buffer carried(const Tensor& flat, std::span<const Before> before, Buffer to) const;
  void write_exact(const Parameter& parameter, const Tensor& to);
  void refresh_exact_vectors();
  void refresh_on_device(std::span<const size_t> vectors);
  void refresh_by_host(std::span<const size_t> vectors);
  size_t number_of(const Parameter& parameter) const;
  void write_dense(Stream& stream, const Parameter& parameter, const Tensor& to);
  Storage choose_storage(const Parameter& parameter) const;

  Stream& stream_;
  const kernels::Kernels& kernels_;
  StoreOptions options_;
  std::vector<Parameter> parameters_;
  int64_t flat_size_ = 0;
  int64_t changes_ = 0;
  Buffer gradient_, value_, feedback_;
  bool codecs_on_device_ = false;
  OptimizerArrays optimizer_;
  Buffer decoded_;  ///< one index as kernels read it: bitmap words and ranks
  const Parameter* decoded_for_ = nullptr;
  std::map<std::string, Buffer> constants_;
  kernels::Positions decoded_positions_;
  GradientPanels panels_;
  Expander expander_;
  GradientProbe gradient_probe_;
  Probed probed_ = Probed::pruned;
};

}  // namespace espalier::sparse
