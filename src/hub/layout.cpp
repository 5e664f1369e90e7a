#include "src/hub/layout.h"

#include "src/config/schema.h"
#include "src/model/networks/registry.h"

namespace espalier::hub {
namespace {

constexpr int64_t kFused = 3;  // query, key, value
constexpr std::string_view kNumber = "{}";

/// The runs of a parameter with `rows` rows.
std::vector<RowRun> runs_of(const TensorRule& rule, size_t parameter, int64_t rows) {
  if (rule.form != Form::fused) {
    return {{.parameter = parameter, .row = 0, .tensor_row = rule.skipped, .rows = rows}};
  }
  require(rule.heads > 0 && rows % rule.heads == 0, "heads divide the rows", rule.tensor, rows,
          rule.heads);
  const int64_t head_rows = rows / rule.heads;
  std::vector<RowRun> runs;
  for (int64_t head = 0; head < rule.heads; ++head) {
    runs.push_back({.parameter = parameter,
                    .row = head * head_rows,
                    .tensor_row = (head * kFused + rule.part) * head_rows,
                    .rows = head_rows});
  }
  return runs;
}

}  // namespace

Layout::Layout(const Family& family, const io::ModelConfig& model,
               const std::vector<sparse::ParameterSpec>& specs, std::string_view prefix)
    : family_(&family), prefix_(prefix), ignored_(family.ignored(model)) {
  for (const sparse::ParameterSpec& spec : specs) {
    const bool matrix = spec.shape.rank() == 2;
    require(matrix || spec.shape.rank() == 1, "parameters are matrices or vectors", spec.name);
    numbers_.emplace(spec.name, parameters_.size());
    parameters_.push_back({.name = spec.name,
                           .shape = spec.shape,
                           .prunable = spec.prunable,
                           .rows = spec.shape[0],
                           .cols = matrix ? spec.shape[1] : 1});
  }
  const std::vector<TensorRule> rules = family.tensors(model);
  const auto is_repeated = [](const TensorRule& rule) {
    return rule.parameter.find(kNumber) != std::string::npos;
  };
  for (auto rule = rules.begin(); rule != rules.end();) {
    const auto end =
        is_repeated(*rule) ? std::find_if_not(rule, rules.end(), is_repeated) : std::next(rule);
    for (int64_t block = 0; block < (is_repeated(*rule) ? model.layers : 1); ++block) {
      for (auto one = rule; one != end; ++one) {
        TensorRule of_block = *one;
        of_block.tensor = in_block(one->tensor, block);
        of_block.parameter = in_block(one->parameter, block);
        add(of_block);
      }
    }
    rule = end;
  }
  for (TensorPlace& tensor : tensors_) {
    std::ranges::sort(tensor.runs, {}, &RowRun::tensor_row);
    int64_t next = tensor.skipped;
    for (const RowRun& run : tensor.runs) {
      require(run.tensor_row == next, "parameters cover the rows of a tensor", tensor.name, next);
      next += run.rows;
    }
  }
  for (const ParameterPlace& parameter : parameters_) {
    require(!parameter.runs.empty(), "the family's table has all parameters", parameter.name);
  }
}

void Layout::add(const TensorRule& rule) {
  const auto found = numbers_.find(rule.parameter);
  require(found != numbers_.end() && parameters_[found->second].runs.empty(),
          "a line of the table is of one parameter", rule.tensor, rule.parameter);
  const size_t number = found->second;
  ParameterPlace& parameter = parameters_[number];
  const std::string name = (rule.prefixed ? prefix_ : "") + rule.tensor;
  if (tensors_.empty() || tensors_.back().name != name) {
    tensors_.push_back({.name = name,
                        .rows = rule.skipped,
                        .cols = parameter.cols,
                        .transposed = rule.form == Form::transposed,
                        .positions = rule.positions,
                        .plus_one = rule.plus_one,
                        .skipped = rule.skipped});
  }
  TensorPlace& tensor = tensors_.back();
  parameter.tensor = tensors_.size() - 1;
  parameter.runs = runs_of(rule, number, parameter.rows);
  tensor.parameters.push_back(number);
  if (tensor.transposed) {
    require(tensor.parameters.size() == 1 && rule.skipped == 0,
            "a transposed tensor is a whole parameter", rule.tensor);
    tensor.rows = parameter.cols;
    tensor.cols = parameter.rows;
  } else {
    std::ranges::copy(parameter.runs, std::back_inserter(tensor.runs));
    tensor.rows += parameter.rows;
  }
  tensor.shape = {tensor.rows};
  if (parameter.shape.rank() == 2) {
    tensor.shape.push_back(tensor.cols);
  }
}

bool Layout::ignores(std::string_view tensor) const {
  const std::string_view base =
      tensor.starts_with(prefix_) ? tensor.substr(prefix_.size()) : tensor;
  return std::ranges::any_of(ignored_, [&](const std::string& pattern) {
    return matches(pattern, base) || matches(pattern, tensor);
  });
}

void check_sizes(const io::ModelConfig& model, const std::string& file) {
  const io::Config config{.model = model};
  for (const config::Field& field : config::fields()) {
    if (field.section == "model") {
      config::check_limits(field, config, file);
    }
  }
}

std::vector<sparse::ParameterSpec> specs_of(const io::ModelConfig& model) {
  const model::NetworkKind& kind = model::network_of(model);
  if (kind.check != nullptr) {
    kind.check(model);
  }
  return model::parameters_of(model::make_layers(
      model, {.classes = model.vocabulary, .features = model.context, .rows = model.context}));
}

std::string in_block(std::string pattern, int64_t number) {
  const size_t at = pattern.find(kNumber);
  return at == std::string::npos ? pattern
                                 : pattern.replace(at, kNumber.size(), fmt::format("{}", number));
}

bool matches(std::string_view pattern, std::string_view name) {
  while (true) {
    const size_t at = pattern.find(kNumber);
    if (at == std::string_view::npos) {
      return pattern == name;
    }
    if (!name.starts_with(pattern.substr(0, at))) {
      return false;
    }
    name.remove_prefix(at);
    pattern.remove_prefix(at + kNumber.size());
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0) {
      return false;
    }
    name.remove_prefix(digits);
  }
}

}  // namespace espalier::hub
