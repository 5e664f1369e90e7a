#include "src/optim/parametrization.h"

#include <algorithm>
#include <cmath>

#include "src/optim/registry.h"

namespace espalier::optim {
namespace {

constexpr ParametrizationKind kParametrizations[]{
    {.name = "standard", .help = "one learning rate for all parameters"},
    {.name = "supar",
     .help = "learning rate and initial values follow width and density (SμPar)",
     .scales = true},
    {.name = "supar-lr",
     .help =
         "the same, but density changes learning rates only, and less where few inputs are kept",
     .scales = true,
     .keeps_deviation = true,
     .few_inputs = 8}};

}  // namespace

Registry<ParametrizationKind> parametrizations() { return pointers_into<kParametrizations>(); }

Parametrization::Parametrization(const io::Config& config)
    : kind_(&find(parametrizations(), "train.parametrization", config.train.parametrization)),
      base_width_(static_cast<double>(config.train.base_width)),
      scale_free_(optimizer_of(config.optimizer).scale_free),
      exclude_(config.pruning.exclude) {}

Parametrization::Factors Parametrization::factors_of(const sparse::Parameter& parameter) const {
  if (!scales()) {
    return {};
  }
  using sparse::Scaling;
  const sparse::ParameterSpec& spec = parameter.spec;
  const bool prunable = spec.prunable && std::ranges::none_of(exclude_, [&](const auto& pattern) {
                          return io::glob_match(pattern, spec.name);
                        });
  const double width = static_cast<double>(spec.width);
  const double by_width = base_width_ > 0 && spec.width > 0 ? width / base_width_ : 1;
  const auto inputs = static_cast<double>(spec.shape.cols());
  const double kept = static_cast<double>(std::max<int64_t>(parameter.kept(), 1)) * inputs /
                      static_cast<double>(parameter.size());
  const double by_density =
      prunable ? (kept + kind_->few_inputs) / (inputs + kind_->few_inputs) : 1;
  const double initial_by_density = kind_->keeps_deviation ? 1 : by_density;
  const double scaled = spec.deviation_by_width ? by_width : 1;
  switch (spec.scaling) {
    case Scaling::hidden:
      return {.lr = 1 / (by_density * (scale_free_ ? by_width : 1)),
              .initial_scale = std::sqrt(scaled / (by_width * initial_by_density))};
    case Scaling::logits:
      return {.lr = 1 / by_width, .initial_scale = std::sqrt(scaled) / by_width};
    case Scaling::base:
      break;
  }
  return {.lr = (scale_free_ ? 1 : by_width) / by_density,
          .initial_scale = 1 / std::sqrt(initial_by_density)};
}

bool Parametrization::has_effect(std::span<const sparse::Parameter> parameters) const {
  return std::ranges::any_of(parameters, [this](const sparse::Parameter& parameter) {
    const Factors factors = factors_of(parameter);
    return factors.lr != 1 || factors.initial_scale != 1;
  });
}

double Parametrization::largest_lr_factor(std::span<const sparse::Parameter> parameters) const {
  double largest = 0;
  for (const sparse::Parameter& parameter : parameters) {
    largest = std::max(largest, factors_of(parameter).lr);
  }
  return largest;
}

std::string Parametrization::format_table(std::span<const sparse::Parameter> parameters) const {
  struct Group {
    Factors factors{};
    std::vector<std::string> names{};
  };
  std::vector<Group> groups;
  for (const sparse::Parameter& parameter : parameters) {
    const Factors factors = factors_of(parameter);
    const auto same = std::ranges::find_if(groups, [&](const Group& group) {
      return fmt::format("{:.3g} {:.3g}", group.factors.lr, group.factors.initial_scale) ==
             fmt::format("{:.3g} {:.3g}", factors.lr, factors.initial_scale);
    });
    Group& group = same == groups.end() ? groups.emplace_back(Group{.factors = factors}) : *same;
    group.names.push_back(parameter.spec.name);
  }
  std::string text = fmt::format("{:>10} {:>10}  parameters", "lr ×", "initial ×");
  for (const Group& group : groups) {
    const bool one = group.names.size() == 1;
    text += fmt::format(
        "\n{:>9.3g} {:>10.3g}  {}", group.factors.lr, group.factors.initial_scale,
        one ? group.names.front()
            : fmt::format("{} and {} more", group.names.front(), group.names.size() - 1));
  }
  return text;
}

}  // namespace espalier::optim
