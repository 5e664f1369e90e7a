#include "src/hub/array_match.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "src/hub/layout.h"
#include "src/hub/network_settings.h"
#include "src/hub/torchvision_names.h"
#include "src/hub/transposed_arrays.h"

namespace espalier::hub {
namespace {

using Shapes = std::map<std::string, Shape>;

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

/// "h.#.weight" of "h.12.weight".
std::string form_of(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit || out.empty() || out.back() != '#') {
      out += digit ? '#' : c;
    }
  }
  return out;
}

/// A whole array as a parameter of this shape; none if the shapes differ.
std::optional<io::ArrayView> whole_view(const std::string& name, const Shape& array,
                                        const Shape& wanted, bool transposed = false,
                                        int64_t channels = 0) {
  io::ArrayPart part{.array = name,
                     .rows = wanted.rank() == 0 ? 1 : wanted[0],
                     .transposed = transposed,
                     .channels = channels};
  const bool matrices = array.rank() == 2 && wanted.rank() == 2;
  bool fits = array == wanted;
  if (transposed) {
    fits = matrices && array[0] == wanted[1] && array[1] == wanted[0];
  } else if (array.rank() == 4 && wanted.rank() == 2) {
    part.channels_last = true;
    fits = array[0] == wanted[0] && array.count() == wanted.count();
  }
  fits = fits && (channels == 0 || (matrices && wanted[1] % channels == 0));
  return fits ? std::optional(io::ArrayView{.shape = wanted, .parts = {part}}) : std::nullopt;
}

/// One way to find the parameters.
struct Candidate {
  std::string title{};
  model::ProblemShape problem{};
  Specs specs{};
  std::map<std::string, io::ArrayView> views{};
  io::NamedShapes missing{};  ///< their names
  std::set<std::string> used{};
  std::vector<std::string> notes{};

  void add(const std::string& parameter, io::ArrayView view) {
    for (const io::ArrayPart& part : view.parts) {
      used.insert(part.array);
    }
    if (!view.subtracted.empty()) {
      used.insert(view.subtracted);
    }
    views.insert_or_assign(parameter, std::move(view));
  }
};

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
    data_kind_ = config.data.kind;
  }

  ArrayMatch match() {
    check_lines(lines_, expected_of(model_, kind_));
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
        fail("{}", faults_.front());
      }
      if (std::optional<Candidate> found = by_shape(candidates)) {
        return finish(*found);
      }
      fail_missing(candidates);
    }
    if (whole.size() > 1) {
      std::vector<std::string> titles;
      for (const Candidate* candidate : whole) {
        titles.push_back(candidate->title);
      }
      fail(
          "{} holds the network more than once: with the names of {}; write the one that you mean "
          "into a file of its own",
          reader_.path().string(), fmt::join(titles, "; of "));
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
  /// Of a matrix, as its parameter has it.
  std::optional<Shape> shape_by_line(const std::string& parameter) const {
    const auto found = line_of(parameter);
    if (!found || found->line->theirs.size() != 1 || found->line->ours.size() != 1) {
      return std::nullopt;
    }
    const std::string name = with_numbers(found->line->theirs.front(), found->numbers);
    if (!exists(name)) {
      return std::nullopt;
    }
    const Shape found_shape = shape(name);
    return found->line->transposed && found_shape.rank() == 2
               ? Shape{found_shape[1], found_shape[0]}
               : found_shape;
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
        to.missing.emplace_back(
            theirs.back(), fmt::format("for {} {} ({})", spec.name, spec.shape.text(), line.text));
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
          whole_view(theirs[0], shape(theirs[0]), spec.shape, line.transposed, line.channels);
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
      for (size_t i = 0; i <= found->place; ++i) {
        const std::string before = with_numbers(line.ours[i], found->numbers);
        const auto other = std::ranges::find(to.specs, before, &sparse::ParameterSpec::name);
        check(other != to.specs.end(), "{}: the network has no parameter {}", line.text, before);
        rows += i < found->place ? other->shape[0] : 0;
      }
      if (rows + spec.shape[0] > rows_of(theirs[0])) {
        wrong(theirs[0]);
      }
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
                  return line_of(spec.name) || whole_view(name, shape(name), spec.shape);
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
    } catch (const Failure& failure) {
      faults_.emplace_back(failure.what());
    }
  }

  void add_own(std::vector<Candidate>& candidates, const std::string& prefix) const {
    const auto problem = problem_by([&](const std::string& name) {
      return exists(prefix + name) ? std::optional(shape(prefix + name)) : std::nullopt;
    });
    if (!problem) {
      return;
    }
    Candidate candidate{.problem = *problem, .specs = specs_for(model_, *problem)};
    if (!prefix.empty()) {
      candidate.title = "this program below " + prefix.substr(0, prefix.size() - 1);
    }
    for (const sparse::ParameterSpec& spec : candidate.specs) {
      if (add_by_line(candidate, spec)) {
        continue;
      }
      const std::string name = prefix + spec.name;
      if (!exists(name)) {
        candidate.missing.emplace_back(name, spec.shape.text());
        continue;
      }
      const auto view = whole_view(name, shape(name), spec.shape);
      check(view.has_value(), "{}: {}", reader_.path().string(),
            view ? "" : shape_fault(named_arrays(prefix), candidate.specs, spec));
      candidate.add(spec.name, *view);
    }
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
      const std::vector<TensorRule> rules = family->tensors(model_);
      const auto embedding =
          std::ranges::find(rules, std::string("embedding.token"), &TensorRule::parameter);
      if (embedding == rules.end()) {
        continue;
      }
      for (const auto& [name, array] : shapes_) {
        const bool ends = name.ends_with(embedding->tensor);
        const std::string prefix =
            ends ? name.substr(0, name.size() - embedding->tensor.size()) : "";
        if (ends && (prefix.empty() || prefix.back() == '.')) {
          try_to([&] { add_family(candidates, *family, prefix, name, array); });
        }
      }
    }
  }

  void add_family(std::vector<Candidate>& candidates, const Family& family,
                  const std::string& prefix, const std::string& embedding,
                  const Shape& array) const {
    const auto problem = problem_by([&](const std::string& parameter) {
      return parameter == "embedding.token" ? std::optional(array) : std::nullopt;
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
    const auto name_in_file = [&](const std::string& name) {
      const std::string wrapped = std::string(outer) + name;
      return !name.starts_with(prefix) && exists(wrapped) ? wrapped : name;
    };
    for (const bool linear : {false, true}) {
      if (linear && !layout.transposes()) {
        continue;
      }
      Candidate candidate{.title = linear ? "nanoGPT (linear layers [out, in])"
                                          : fmt::format("transformers' {}", family.architecture),
                          .problem = *problem,
                          .specs = specs};
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
        } else if (parameter.name == "head.weight" && array == spec->shape) {
          candidate.add(parameter.name, *whole_view(embedding, array, spec->shape));
          candidate.notes.push_back(fmt::format(
              "there is no {}: head.weight is a copy of {} (model.tie_embeddings = true shares it)",
              name, embedding));
        } else if (linear && parameter.name.ends_with(".bias") && !has_form(name)) {
          candidate.add(parameter.name, {.shape = parameter.shape});
          ++zeros;
        } else {
          candidate.missing.emplace_back(
              name, fmt::format("{} for {}", text_of(place, linear), parameter.name));
        }
      }
      if (zeros > 0) {
        candidate.notes.push_back(
            fmt::format("{} biases that the file does not have are zero", zeros));
      }
      check_tied(candidate, model, embedding, name_in_file("lm_head.weight"));
      candidates.push_back(std::move(candidate));
    }
  }

  static std::string text_of(const TensorPlace& place, bool linear) {
    const bool turned = linear && place.transposed;
    return turned ? Shape{place.shape[1], place.shape[0]}.text() : Shape(place.shape).text();
  }

  bool has_form(const std::string& name) const {
    const std::string form = form_of(name);
    return std::ranges::any_of(reader_.names(),
                               [&](const std::string& other) { return form_of(other) == form; });
  }

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
      candidate.missing.emplace_back(
          name, fmt::format("{} instead of {} for {}", wanted.text(), found.text(), spec.name));
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

  /// Files of tied models hold the head twice.
  void check_tied(Candidate& candidate, const io::ModelConfig& model, const std::string& embedding,
                  const std::string& head) const {
    if (!model.tie_embeddings || !exists(head)) {
      return;
    }
    check(reader_.read(head) == reader_.read(embedding),
          "{}: {} differs from {}, and the config ties them; set model.tie_embeddings = false",
          reader_.path().string(), head, embedding);
    candidate.used.insert(head);
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
        candidate.missing.emplace_back(place.array,
                                       fmt::format("for {} {}", spec->name, spec->shape.text()));
      }
    }
    candidates.push_back(std::move(candidate));
  }

  // Shapes.

  /// Consecutive parameters, or arrays, whose names differ in numbers only.
  struct Row {
    std::vector<std::string> names;
    std::vector<Shape> shapes;
  };
  static std::vector<Row> rows_of(const std::vector<std::pair<std::string, Shape>>& all,
                                  bool grouped) {
    std::vector<Row> rows;
    std::map<std::string, size_t> numbers;
    for (const auto& [name, one] : all) {
      const auto [found, fresh] = numbers.emplace(grouped ? form_of(name) : name, rows.size());
      if (fresh) {
        rows.emplace_back();
      }
      rows[found->second].names.push_back(name);
      rows[found->second].shapes.push_back(one);
    }
    return rows;
  }

  enum class Fit : uint8_t { none, same, transposed };
  static Fit fit(const Row& parameters, const Row& arrays) {
    if (parameters.names.size() != arrays.names.size()) {
      return Fit::none;
    }
    bool same = true;
    bool transposed = true;
    for (size_t i = 0; i < parameters.names.size(); ++i) {
      const auto fits = [&](bool turned) {
        return whole_view(arrays.names[i], arrays.shapes[i], parameters.shapes[i], turned)
            .has_value();
      };
      same = same && fits(false);
      transposed = transposed && fits(true);
    }
    return same ? Fit::same : transposed ? Fit::transposed : Fit::none;
  }

  /// Fills what a candidate lacks; true if everything is there and nothing was ambiguous.
  bool fill_by_shape(Candidate& candidate) const {
    bool any_transposed = false;
    bool any_square = false;
    for (const bool grouped : {true, false}) {
      for (bool progress = true; progress;) {
        progress = false;
        std::vector<std::pair<std::string, Shape>> wanted;
        std::vector<std::pair<std::string, Shape>> found;
        for (const sparse::ParameterSpec& spec : candidate.specs) {
          if (!candidate.views.contains(spec.name)) {
            wanted.emplace_back(spec.name, spec.shape);
          }
        }
        for (const auto& [name, one] : shapes_) {
          if (!candidate.used.contains(name)) {
            found.emplace_back(name, one);
          }
        }
        std::ranges::sort(found, natural_less, &std::pair<std::string, Shape>::first);
        const std::vector<Row> parameters = rows_of(wanted, grouped);
        const std::vector<Row> arrays = rows_of(found, grouped);
        for (const Row& parameter : parameters) {
          const auto fits = [&](const Row& array) { return fit(parameter, array) != Fit::none; };
          const auto array = std::ranges::find_if(arrays, fits);
          if (array == arrays.end() || std::ranges::count_if(arrays, fits) != 1 ||
              std::ranges::count_if(parameters, [&](const Row& other) {
                return fit(other, *array) != Fit::none;
              }) != 1) {
            continue;
          }
          const bool turned = fit(parameter, *array) == Fit::transposed;
          for (size_t i = 0; i < parameter.names.size(); ++i) {
            const Shape& matrix = parameter.shapes[i];
            any_transposed = any_transposed || turned;
            any_square = any_square || (matrix.rank() == 2 && matrix[0] == matrix[1]);
            candidate.add(parameter.names[i],
                          *whole_view(array->names[i], array->shapes[i], matrix, turned));
          }
          progress = true;
        }
      }
    }
    return candidate.views.size() == candidate.specs.size() && !(any_transposed && any_square);
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

  std::optional<Candidate> by_shape(const std::vector<Candidate>& candidates) const {
    std::optional<Candidate> found;
    std::vector<Candidate> starts;
    if (!candidates.empty() && candidates.front().title.empty()) {
      starts.push_back(candidates.front());
    } else {
      for (const model::ProblemShape& problem : possible_problems()) {
        starts.push_back({.problem = problem, .specs = specs_for(model_, problem)});
        for (const sparse::ParameterSpec& spec : starts.back().specs) {
          if (!add_by_line(starts.back(), spec) && shapes_.contains(spec.name)) {
            if (auto view = whole_view(spec.name, shape(spec.name), spec.shape)) {
              starts.back().add(spec.name, std::move(*view));
            }
          }
        }
      }
    }
    for (Candidate& start : starts) {
      if (!fill_by_shape(start)) {
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
    const bool known = best != nullptr && !best->views.empty();
    io::NamedShapes expected;
    if (known) {
      expected = best->missing;
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
    fail(
        "{} does not have {} parameters of the network{}, and shapes do not decide; translate "
        "their names with --map FILE (lines THEIRS -> OURS, docs/bring-your-masks.md), or correct "
        "[model] in the config:{}",
        reader_.path().string(), expected.size(),
        known && !best->title.empty() ? fmt::format(", read as a file of {}", best->title) : "",
        io::expected_and_found(expected, found));
  }

  ArrayMatch finish(const Candidate& candidate) const {
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
      check(!forms.contains(form_of(name)),
            "{}: {} is named like arrays of the network, and cannot be used: {}; {}, or leave it "
            "out by a line \"{} -> -\" in a --map file",
            reader_.path().string(), name, unusable.why, unusable.fix, name);
    }
  }

  const io::PlainReader& reader_;
  const io::ModelConfig& model_;
  const model::NetworkKind& kind_;
  std::span<const MapLine> lines_;
  Shapes shapes_;
  std::string data_kind_{};
  std::vector<std::string> faults_{};  ///< of names that some program would read
};

}  // namespace

ArrayMatch match_arrays(const io::PlainReader& reader, const io::Config& config,
                        std::span<const MapLine> lines) {
  return Matcher(reader, config, lines).match();
}

}  // namespace espalier::hub
