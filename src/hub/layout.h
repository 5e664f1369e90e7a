#pragma once
// Where the elements of a network's parameters lie in the tensors of a Hugging Face model: the
// table of a family, written out for one network.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/hub/families/family.h"

namespace espalier::hub {

/// Consecutive rows of a parameter that are consecutive rows of its tensor. The runs of a parameter
/// ascend in both.
struct RowRun {
  size_t parameter = 0;  ///< number in Layout::parameters
  int64_t row = 0;       ///< first one, of the parameter
  int64_t tensor_row = 0;
  int64_t rows = 0;
};

struct TensorPlace {
  std::string name{};
  std::vector<int64_t> shape{};
  int64_t rows = 0, cols = 0;        ///< as a matrix; a vector has one column
  bool transposed = false;           ///< its parameter is [cols, rows]
  bool positions = false;            ///< files may have more rows
  bool plus_one = false;             ///< the parameter is the tensor + 1
  int64_t skipped = 0;               ///< first rows that no parameter has
  std::vector<size_t> parameters{};  ///< numbers in Layout::parameters
  std::vector<RowRun> runs{};        ///< of all parameters, in the order of the tensor's rows
  int64_t count() const { return rows * cols; }
};

struct ParameterPlace {
  std::string name{};
  Shape shape{};
  bool prunable = false;
  int64_t rows = 0, cols = 0;  ///< as a matrix; a vector has one column
  size_t tensor = 0;           ///< number in Layout::tensors
  std::vector<RowRun> runs{};  ///< in the order of rows; unused if transposed
  int64_t count() const { return rows * cols; }
};

class Layout {
 public:
  /// `specs`: all parameters of the network. `prefix`: of this model's files.
  Layout(const Family& family, const io::ModelConfig& model,
         const std::vector<sparse::ParameterSpec>& specs, std::string_view prefix);

  const Family& family() const { return *family_; }
  const std::string& prefix() const { return prefix_; }
  /// In the order of the family's table, block by block.
  const std::vector<TensorPlace>& tensors() const { return tensors_; }
  /// In the order of `specs`.
  const std::vector<ParameterPlace>& parameters() const { return parameters_; }
  const TensorPlace& tensor_of(const ParameterPlace& parameter) const {
    return tensors_[parameter.tensor];
  }
  /// Whether some tensors are transposed parameters.
  bool transposes() const { return std::ranges::any_of(tensors_, &TensorPlace::transposed); }
  /// Whether the network does not need a tensor that files of the family may have.
  bool ignores(std::string_view tensor) const;

 private:
  void add(const TensorRule& rule);

  const Family* family_;
  std::string prefix_;
  std::vector<std::string> ignored_;
  std::vector<TensorPlace> tensors_;
  std::vector<ParameterPlace> parameters_;
  std::unordered_map<std::string, size_t> numbers_;  ///< name → index of parameters_
};

/// Throws Failure, which begins with `file`, if a number of `model` is outside the limits of the
/// config's schema, or the parameters of such a network would be too large.
void check_sizes(const io::ModelConfig& model, const std::string& file);
/// Parameters of the network of `model`, whose vocabulary is set. Call check_sizes before.
std::vector<sparse::ParameterSpec> specs_of(const io::ModelConfig& model);
/// `pattern` with `number` in place of "{}".
std::string in_block(std::string pattern, int64_t number);
/// Whether `name` is `pattern` with a number in place of each "{}".
bool matches(std::string_view pattern, std::string_view name);

}  // namespace espalier::hub
