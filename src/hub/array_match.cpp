#include "src/hub/array_match.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "src/hub/array_candidate.h"
#include "src/hub/kernel_shape.h"
#include "src/hub/layout.h"
#include "src/hub/network_settings.h"
#include "src/hub/torchvision_names.h"
#include "src/hub/transposed_arrays.h"
#include "src/model/layers/embedding.h"

namespace espalier::hub {
namespace {

/// The arrays that can be read, with their shapes; others only lines of --map may name.
Shapes shapes_of(const io::PlainReader& reader) {
  Shapes shapes;
  for (const std::string& name : reader.names()) {
    if (io::says_mask(name) || io::says_optimizer(name)) {
      continue;
    }
    try {
      shapes.emplace(name, reader.shape(name));
    } catch (const Failure&) {  // named if a parameter needs it
    }
  }
  return shapes;
}

class Matcher {
 public:
  Matcher(const io::PlainReader& reader, const io::Config& config, std::span<const MapLine> lines)
      : reader_(reader),
        model_(config.model),
        kind_(model::network_of(config.model)),
        lines_(lines),
        shapes_(shapes_of(reader)) {
    if (kind_.check != nullptr) {
      kind_.check(model_);
    }
    for (const std::string& name : reader.names()) {
      forms_.insert(form_of(name));
    }
    data_kind_ = config.data.kind;
    tied_ = kind_.tied_parameter != nullptr ? kind_.tied_parameter(model_) : "";
  }

  ArrayMatch match() {
    io::NamedShapes known = expected_of(model_, kind_);
    if (!tied_.empty()) {
      known.emplace_back(kHeadWeight, "");  // compared with the embedding
    }
    check_lines(lines_, known);
    std::vector<Candidate> candidates;
    add_own(candidates);
    if (model_.kind == "gpt" || model_.kind == "decoder") {
      add_families(candidates);
    } else {
      add_torchvision(candidates);
    }
    std::vector<Candidate*> whole;
    for (Candidate& candidate : candidates) {
      if (candidate.missing.empty()) {
        whole.push_back(&candidate);
      }
    }
    if (whole.size() > 1 && whole.front()->title.empty()) {
      whole = {whole.front()};  // the parameters' own names
    }
    if (whole.empty()) {
      if (!faults_.empty()) {
        std::rethrow_exception(faults_.front());
      }
      if (std::optional<Candidate> found = by_shape(candidates)) {
        return finish(*found);
      }
      if (!faults_.empty()) {  // lines that fit no extents of the data
        std::rethrow_exception(faults_.front());
      }
      fail_missing(candidates);
    }
    if (whole.size() > 1) {
      std::vector<std::string> titles;
      for (const Candidate* candidate : whole) {
        titles.push_back(candidate->title);
      }
      throw MapFailure(
          fmt::format("{} holds the network more than once: with the names of {}; leave out the "
                      "others by lines \"GROUP -> -\" in a --map file",
                      reader_.path().string(), fmt::join(titles, "; of ")));
    }
    return finish(*whole.front());
  }

 private:
  bool exists(const std::string& name) const { return reader_.has(name); }
  /// Throws Failure that says why an array cannot be read.
  Shape shape(const std::string& name) const {
    const auto found = shapes_.find(name);
    return found != shapes_.end() ? found->second : reader_.shape(name);
  }

  // Lines of --map.

  struct LineOf {
    const MapLine* line;
    std::vector<std::string> numbers;
    size_t place;  ///< in line->ours
  };
  std::optional<LineOf> line_of(const std::string& parameter) const {
    for (const MapLine& line : lines_) {
      for (size_t i = 0; i < line.ours.size(); ++i) {
        std::vector<std::string> numbers;
        if (numbers_in(line.ours[i], parameter, numbers)) {
          return LineOf{&line, numbers, i};
        }
      }
    }
    return std::nullopt;
  }
  /// Of a matrix, or of the rows of several, as its parameter has it.
  std::optional<Shape> shape_by_line(const std::string& parameter) const {
    const auto found = line_of(parameter);
    if (!found || found->line->ours.size() != 1) {
      return std::nullopt;
    }
    std::optional<Shape> all;
    for (const std::string& pattern : found->line->theirs) {
      const std::string name = with_numbers(pattern, found->numbers);
      if (!exists(name) || shape(name).rank() != 2) {
        return std::nullopt;
      }
      const Shape part =
          found->line->transposed ? Shape{shape(name)[1], shape(name)[0]} : shape(name);
      all = all ? Shape{(*all)[0] + part[0], part[1]} : part;
    }
    return all;
  }

  /// True if a line is about the parameter.
  bool add_by_line(Candidate& to, const sparse::ParameterSpec& spec) const {
    const auto found = line_of(spec.name);
    if (!found) {
      return false;
    }
    const MapLine& line = *found->line;
    std::vector<std::string> theirs;
    for (const std::string& pattern : line.theirs) {
      theirs.push_back(with_numbers(pattern, found->numbers));
      if (!exists(theirs.back())) {
        to.missing.push_back(
            {spec.name, theirs.back(),
             fmt::format("for {} {} ({})", spec.name, spec.shape.text(), line.text),
             !pattern.ends_with("{*}")});
        return true;
      }
    }
    const auto wrong = [&](const std::string& name) {
      fail(
          "{}: {} has shape {}, which does not make {} {}{}; correct the line, or [model] in the "
          "config",
          line.text, name, shape(name).text(), spec.name, spec.shape.text(),
          line.transposed ? " when transposed" : "");
    };
    if (theirs.size() == 1 && line.ours.size() == 1) {
      const auto view =
          whole_view(theirs[0], shape(theirs[0]), spec, line.transposed, line.channels);
      if (!view) {
        wrong(theirs[0]);
      }
      to.add(spec.name, *view);
      return true;
    }
    // Rows of one array, or of several, in their order.
    io::ArrayView view{.shape = spec.shape};
    const bool matrix = spec.shape.rank() == 2;
    const auto rows_of = [&](const std::string& name) {
      const Shape all = shape(name);
      const bool fits = all.rank() == spec.shape.rank() &&
                        (!matrix || all[line.transposed ? 0 : 1] == spec.shape[1]) &&
                        (line.channels == 0 || (matrix && spec.shape[1] % line.channels == 0));
      if (!fits) {
        wrong(name);
      }
      return line.transposed && matrix ? all[1] : all[0];
    };
    const auto add = [&](const std::string& name, int64_t first, int64_t rows) {
      view.parts.push_back({.array = name,
                            .first = first,
                            .rows = rows,
                            .transposed = line.transposed && matrix,
                            .channels = line.channels});
    };
    int64_t rows = 0;
    if (theirs.size() > 1) {
      for (const std::string& name : theirs) {
        add(name, 0, rows_of(name));
        rows += view.parts.back().rows;
      }
    } else {
      int64_t all = 0;
      for (size_t i = 0; i < line.ours.size(); ++i) {
        const std::string name = with_numbers(line.ours[i], found->numbers);
        const auto other = std::ranges::find(to.specs, name, &sparse::ParameterSpec::name);
        check(other != to.specs.end(), "{}: the network has no parameter {}", line.text, name);
        all += other->shape[0];
        rows += i < found->place ? other->shape[0] : 0;
      }
      check(all == rows_of(theirs[0]),
            "{}: {} has {} rows, and the parameters of the line have {}; correct the line, or "
            "[model] in the config",
            line.text, theirs[0], rows_of(theirs[0]), all);
      add(theirs[0], rows, spec.shape[0]);
      rows = spec.shape[0];
    }
    if (rows != spec.shape[0]) {
      wrong(theirs.front());
    }
    to.add(spec.name, std::move(view));
    return true;
  }

  NamedArrays named_arrays(const std::string& prefix) const {
    return {.shapes = shapes_,
            .prefix = prefix,
            .network =
                [this](const NamedArrays::ShapeOf& shape_of) {
                  const auto problem = problem_by(shape_of);
                  return problem ? std::optional(specs_for(model_, *problem)) : std::nullopt;
                },
            .fits =
                [this, prefix](const sparse::ParameterSpec& spec) {
                  const std::string name = prefix + spec.name;
                  return line_of(spec.name) || whole_view(name, shape(name), spec);
                },
            .form = form_of};
  }

  /// The extents of the data by the shapes of matrices; none if one of these is missing.
  template <class ShapeOf>
  std::optional<model::ProblemShape> problem_by(const ShapeOf& shape_of) const {
    struct Missing {};
    try {
      return kind_.problem_of(model_, [&](const std::string& parameter) -> Shape {
        std::optional<Shape> found = shape_by_line(parameter);
        found = found ? found : shape_of(parameter);
        if (!found || found->rank() != 2) {
          throw Missing();
        }
        return *found;
      });
    } catch (const Missing&) {
      return std::nullopt;
    }
  }

  /// The parameters' own names, at the root or below one prefix.
  void add_own(std::vector<Candidate>& candidates) {
    add_own(candidates, "");
    const std::string anchor = model_.kind == "gpt" || model_.kind == "decoder"
                                   ? ".embedding.token"
                                   : ".classifier.weight";
    for (const auto& [name, one] : shapes_) {
      if (name.ends_with(anchor)) {
        try_to([&] { add_own(candidates, name.substr(0, name.size() - anchor.size() + 1)); });
      }
    }
    for (const auto& [name, why] : reader_.unusable()) {
      if (name.ends_with(anchor)) {
        try_to([&] { shape(name); });
      }
    }
  }

  /// A failure counts if nothing else has all parameters.
  template <class Action>
  void try_to(const Action& action) {
    try {
      action();
    } catch (const io::hdf5::ReadFailure&) {
      throw;
    } catch (const Failure&) {
      faults_.push_back(std::current_exception());
    }
  }

  void add_own(std::vector<Candidate>& candidates, const std::string& prefix) const {
    const auto problem = problem_by([&](const std::string& name) {
      return exists(prefix + name) ? std::optional(shape(prefix + name)) : std::nullopt;
    });
    if (!problem) {
      return;
    }
    Candidate candidate{.problem = *problem,
                        .specs = specs_for(model_, *problem),
                        .head = prefix + std::string(kHeadWeight)};
    if (!prefix.empty()) {
      candidate.title = "this program below " + prefix.substr(0, prefix.size() - 1);
    }
    for (const sparse::ParameterSpec& spec : candidate.specs) {
      if (add_by_line(candidate, spec)) {
        continue;
      }
      const std::string name = prefix + spec.name;
      if (!exists(name)) {
        candidate.missing.push_back({spec.name, name, spec.shape.text()});
        continue;
      }
      const auto view = whole_view(name, shape(name), spec);
      if (!view) {
        throw MapFailure(fmt::format("{}: {}", reader_.path().string(),
                                     shape_fault(named_arrays(prefix), candidate.specs, spec)));
      }
      candidate.add(spec.name, *view);
    }
    copy_head(candidate);
    candidates.push_back(std::move(candidate));
  }

  // Names of families of transformers.

  void add_families(std::vector<Candidate>& candidates) {
    io::ModelConfig model = model_;
    model.vocabulary = std::max<int64_t>(model.vocabulary, 1);
    model = complete(model);
    for (const Family* family : families()) {
      if (!family->fits(model_) && !family->fits(model)) {
        continue;
      }
      const std::string embedding = tensor_of(*family, model_, model::kTokenEmbedding);
      for (const auto& [name, array] : shapes_) {
        const bool ends = !embedding.empty() && name.ends_with(embedding);
        const std::string prefix = ends ? name.substr(0, name.size() - embedding.size()) : "";
        if (ends && (prefix.empty() || prefix.back() == '.')) {
          try_to([&] { add_family(candidates, *family, prefix, array); });
        }
      }
    }
  }

  /// The name of a parameter, without the family's prefix; empty: the family has none.
  static std::string tensor_of(const Family& family, const io::ModelConfig& model,
                               std::string_view parameter) {
    const std::vector<TensorRule> rules = family.tensors(model);
    const auto found = std::ranges::find(rules, parameter, &TensorRule::parameter);
    return found == rules.end() ? "" : found->tensor;
  }

  void add_family(std::vector<Candidate>& candidates, const Family& family,
                  const std::string& prefix, const Shape& array) const {
    const auto problem = problem_by([&](const std::string& parameter) {
      return parameter == model::kTokenEmbedding ? std::optional(array) : std::nullopt;
    });
    if (!problem) {
      return;
    }
    io::ModelConfig model = model_;
    model.vocabulary = problem->classes;
    const Specs specs = specs_for(model_, *problem);
    // Wrappers ("module.") stand before all names, the family's prefix before most.
    std::string_view outer = prefix;
    if (outer.ends_with(family.prefix)) {
      outer.remove_suffix(family.prefix.size());
    }
    const Layout layout(family, model, specs, prefix);
    model.tie_embeddings = false;
    const std::string head = tensor_of(family, model, kHeadWeight);
    const auto name_in_file = [&](const std::string& name) {
      const std::string wrapped = std::string(outer) + name;
      // In memory, transformers 5 names the head of GPT-NeoX as it does those of other families.
      const std::string head_of_5 = std::string(outer) + "lm_head.weight";
      return !name.starts_with(prefix) && exists(wrapped)            ? wrapped
             : name == head && !exists(wrapped) && exists(head_of_5) ? head_of_5
                                                                     : name;
    };
    for (const bool linear : {false, true}) {
      if (linear && !layout.transposes()) {
        continue;
      }
      Candidate candidate{.title = linear ? "nanoGPT (linear layers [out, in])"
                                          : fmt::format("transformers' {}", family.architecture),
                          .problem = *problem,
                          .specs = specs,
                          .head = name_in_file(head)};
      if (!prefix.empty()) {
        candidate.title += fmt::format(" below {}", prefix.substr(0, prefix.size() - 1));
      }
      int64_t zeros = 0;
      for (const ParameterPlace& parameter : layout.parameters()) {
        const auto spec = std::ranges::find(specs, parameter.name, &sparse::ParameterSpec::name);
        if (add_by_line(candidate, *spec)) {
          continue;
        }
        const TensorPlace& place = layout.tensor_of(parameter);
        const std::string name = name_in_file(place.name);
        if (exists(name)) {
          add_from_tensor(candidate, *spec, parameter, place, name, linear);
        } else if (linear && parameter.name.ends_with(".bias") && !has_form(name)) {
          candidate.add(parameter.name, {.shape = parameter.shape});
          ++zeros;
        } else {
          candidate.missing.push_back(
              {parameter.name, name,
               fmt::format("{} for {}", text_of(place, linear), parameter.name)});
        }
      }
      if (zeros > 0) {
        candidate.notes.push_back(
            fmt::format("{} biases that the file does not have are zero", zeros));
      }
      copy_head(candidate);
      candidates.push_back(std::move(candidate));
    }
  }

  static std::string text_of(const TensorPlace& place, bool linear) {
    const bool turned = linear && place.transposed;
    return turned ? Shape{place.shape[1], place.shape[0]}.text() : Shape(place.shape).text();
  }

  bool has_form(const std::string& name) const { return forms_.contains(form_of(name)); }

  void add_from_tensor(Candidate& candidate, const sparse::ParameterSpec& spec,
                       const ParameterPlace& parameter, const TensorPlace& place,
                       const std::string& name, bool linear) const {
    const Shape found = shape(name);
    const bool transposed = place.transposed && !linear;
    Shape wanted(place.shape);
    if (place.transposed && linear) {
      wanted = Shape{place.shape[1], place.shape[0]};
    }
    const bool more_positions =
        place.positions && found.rank() == 2 && found[1] == wanted[1] && found[0] >= wanted[0];
    if (found != wanted && !more_positions) {
      candidate.missing.push_back(
          {spec.name, name,
           fmt::format("{} instead of {} for {}", wanted.text(), found.text(), spec.name)});
      return;
    }
    io::ArrayView view{.shape = spec.shape, .added = place.plus_one ? 1.0F : 0.0F};
    if (transposed || place.transposed) {
      view.parts.push_back({.array = name, .rows = spec.shape[0], .transposed = transposed});
    } else {
      for (const RowRun& run : parameter.runs) {
        view.parts.push_back({.array = name, .first = run.tensor_row, .rows = run.rows});
      }
    }
    candidate.add(spec.name, std::move(view));
  }

  // Files of networks whose head is the embedding, for others, and the reverse.

  /// A file without a head: it is a copy of the embedding, unless another array may be the head.
  void copy_head(Candidate& candidate) const {
    const auto missing =
        std::ranges::find(candidate.missing, kHeadWeight, &Candidate::Missing::parameter);
    const auto found = candidate.views.find(std::string(model::kTokenEmbedding));
    if (missing == candidate.missing.end() || found == candidate.views.end()) {
      return;
    }
    const io::ArrayView embedding = found->second;
    const sparse::ParameterSpec head{.shape = embedding.shape};
    for (const auto& [name, array] : shapes_) {
      if (!candidate.used.contains(name) &&
          (whole_view(name, array, head) || whole_view(name, array, head, true))) {
        return;
      }
    }
    for (const auto& [name, unusable] : reader_.unusable()) {
      if (std::ranges::is_permutation(unusable.extents, embedding.shape.extents())) {
        return;
      }
    }
    candidate.notes.push_back(fmt::format(
        "there is no {}: head.weight is a copy of {} (model.tie_embeddings = true shares it)",
        missing->array, embedding.parts.front().array));
    candidate.missing.erase(missing);
    candidate.add(std::string(kHeadWeight), embedding);
  }

  /// A head in a file for a network without its own must equal the embedding.
  void check_head(Candidate& candidate) const {
    const auto embedding = candidate.views.find(tied_);
    if (embedding == candidate.views.end()) {
      return;
    }
    const sparse::ParameterSpec spec{.name = std::string(kHeadWeight),
                                     .shape = embedding->second.shape};
    Candidate head{.specs = candidate.specs};
    add_by_line(head, spec);
    if (head.views.empty() && exists(candidate.head)) {
      head.add(spec.name, whole_view(candidate.head, shape(candidate.head), spec)
                              .value_or(io::ArrayView{.parts = {{.array = candidate.head}}}));
    }
    for (const auto& [name, view] : head.views) {
      check(view.shape == spec.shape && reader_.same(view, embedding->second),
            "{}: {} differs from {}, and the config ties them; set model.tie_embeddings = false",
            reader_.path().string(), view.parts.front().array,
            embedding->second.parts.front().array);
    }
    candidate.used.merge(head.used);
  }

  void add_torchvision(std::vector<Candidate>& candidates) const {
    const std::optional<TorchNames> names = torchvision_names(reader_, shapes_);
    if (!names) {
      return;
    }
    const std::string& classifier = names->linears.back();
    const auto problem = problem_by([&](const std::string& parameter) {
      return parameter == "classifier.weight" ? std::optional(shape(classifier + ".weight"))
                                              : std::nullopt;
    });
    if (!problem) {
      return;
    }
    Candidate candidate{
        .title = "torchvision", .problem = *problem, .specs = specs_for(model_, *problem)};
    for (const TorchPlace& place : torchvision_places(*names, candidate.specs, shapes_)) {
      const auto spec =
          std::ranges::find(candidate.specs, place.parameter, &sparse::ParameterSpec::name);
      if (add_by_line(candidate, *spec)) {
        continue;
      }
      if (place.view) {
        candidate.add(spec->name, *place.view);
      } else {
        const int rank = exists(place.array) ? shape(place.array).rank() : 0;  // or its fault
        candidate.missing.push_back(
            {spec->name, place.array,
             fmt::format("for {} {}", spec->name, expected_shape(*spec, rank, spec->groups))});
      }
    }
    candidates.push_back(std::move(candidate));
  }

  /// Extents of the data that would fit.
  std::vector<model::ProblemShape> possible_problems() const {
    std::set<int64_t> extents;
    for (const auto& [name, one] : shapes_) {
      if (one.rank() == 2 && extents.size() < 64) {
        extents.insert({one[0], one[1]});
      }
    }
    const int64_t known = model_.kind == "gpt" || model_.kind == "decoder"
                              ? (data_kind_ == "bytes" ? 256 : model_.vocabulary)
                              : model_.classes;
    const std::set<int64_t> classes = known > 0 ? std::set{known} : extents;
    const bool inputs = model_.kind == "mlp";
    std::vector<model::ProblemShape> all;
    for (const int64_t c : classes) {
      for (const int64_t f : inputs ? extents : std::set<int64_t>{1}) {
        const auto problem = problem_by([&](const std::string&) { return Shape{c, f}; });
        if (problem) {
          all.push_back(*problem);
        }
      }
    }
    return all;
  }

  std::optional<Candidate> by_shape(const std::vector<Candidate>& candidates) {
    std::optional<Candidate> found;
    std::vector<Candidate> starts;
    if (!candidates.empty() && candidates.front().title.empty()) {
      starts.push_back(candidates.front());
    } else {
      for (const model::ProblemShape& problem : possible_problems()) {
        try_to([&] {
          Candidate start{.problem = problem, .specs = specs_for(model_, problem)};
          for (const sparse::ParameterSpec& spec : start.specs) {
            if (!add_by_line(start, spec) && shapes_.contains(spec.name)) {
              if (auto view = whole_view(spec.name, shape(spec.name), spec)) {
                start.add(spec.name, std::move(*view));
              }
            }
          }
          starts.push_back(std::move(start));
        });
      }
    }
    for (Candidate& start : starts) {
      if (std::ranges::any_of(start.missing, &Candidate::Missing::line) ||
          !start.fill_by_shape(shapes_)) {
        continue;
      }
      if (found) {
        return std::nullopt;  // several sizes of the data would fit
      }
      found = std::move(start);
      found->missing.clear();
      found->title.clear();  // the notes name each choice
      for (const auto& [parameter, view] : found->views) {
        if (!view.parts.empty() && view.parts.front().array != parameter) {
          if (!line_of(parameter)) {
            const std::string& array = view.parts.front().array;
            check_only_one(reader_, parameter, array, shape(array));
          }
          found->notes.push_back(fmt::format("{} is {} by its shape {}{}", view.parts.front().array,
                                             parameter, view.shape.text(),
                                             view.parts.front().transposed ? ", transposed" : ""));
        }
      }
    }
    return found;
  }

  [[noreturn]] void fail_missing(const std::vector<Candidate>& candidates) const {
    const Candidate* best = nullptr;
    for (const Candidate& candidate : candidates) {
      if (best == nullptr || candidate.views.size() > best->views.size()) {
        best = &candidate;
      }
    }
    const bool known = best != nullptr;
    io::NamedShapes expected;
    if (known) {
      for (const Candidate::Missing& missing : best->missing) {
        expected.emplace_back(missing.array, missing.text);
      }
    } else {
      for (const auto& [name, one] : expected_of(model_, kind_)) {
        if (!exists(name)) {
          expected.emplace_back(name, one);
        }
      }
    }
    io::NamedShapes found = reader_.named_shapes();
    std::erase_if(found,
                  [&](const auto& array) { return known && best->used.contains(array.first); });
    throw MapFailure(fmt::format(
        "{} does not have {} parameters of the network{}, and shapes do not decide; translate "
        "their names with --map FILE (lines THEIRS -> OURS, docs/bring-your-masks.md), or correct "
        "[model] in the config:{}",
        reader_.path().string(), expected.size(),
        known && !best->title.empty() ? fmt::format(", read as a file of {}", best->title) : "",
        io::expected_and_found(expected, found)));
  }

  ArrayMatch finish(Candidate& candidate) const {
    check_head(candidate);
    check_left_over(candidate);
    ArrayMatch match{.views = candidate.views,
                     .problem = candidate.problem,
                     .names = candidate.title,
                     .notes = candidate.notes};
    std::vector<std::string> unused;
    for (const std::string& name : reader_.names()) {
      if (!candidate.used.contains(name)) {
        unused.push_back(name);
      }
    }
    const auto note = [&](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) {
        match.notes.push_back(fmt::format("{}: {}", what, first_of(names)));
      }
    };
    note("not used", unused);
    note("no usable arrays, skipped", reader_.skipped());
    return match;
  }

  /// Layers that the network lacks, and masks of no array, would change the network silently.
  void check_left_over(const Candidate& candidate) const {
    check_masks(reader_, candidate.used);
    std::set<std::string> forms;
    for (const std::string& name : candidate.used) {
      forms.insert(form_of(name));
    }
    for (const std::string& name : reader_.names()) {
      check(candidate.used.contains(name) || !forms.contains(form_of(name)),
            "{} has a dataset \"{}\", and the model in the config has no such layer; correct "
            "[model] in the config, or remove the dataset",
            reader_.path().string(), name);
    }
    for (const auto& [name, unusable] : reader_.unusable()) {
      check_map(!forms.contains(form_of(name)),
                "{}: {} is named like arrays of the network, and cannot be used: {}; {}, or leave "
                "it out by a line \"{} -> -\" in a --map file",
                reader_.path().string(), name, unusable.why, unusable.fix, name_in_map(name));
    }
  }

  const io::PlainReader& reader_;
  const io::ModelConfig& model_;
  const model::NetworkKind& kind_;
  std::span<const MapLine> lines_;
  Shapes shapes_;
  std::set<std::string> forms_{};  ///< of all arrays
  std::string data_kind_{};
  std::string tied_{};                        ///< the embedding that is the head, too; empty: none
  std::vector<std::exception_ptr> faults_{};  ///< of names that some program would read
};

}  // namespace

ArrayMatch match_arrays(const io::PlainReader& reader, const io::Config& config,
                        std::span<const MapLine> lines) {
  return Matcher(reader, config, lines).match();
}

}  // namespace espalier::hub
