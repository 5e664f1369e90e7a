#include "src/hub/import.h"

#include <algorithm>
#include <array>
#include <future>
#include <memory>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/stored_tokenizer.h"
#include "io/files/folders.h"
#include "io/safetensors/json_events.h"
#include "io/safetensors/numbers.h"
#include "sparse/index/file_index.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/core/arena.h"
#include "src/hub/directory.h"
#include "src/hub/end_tokens.h"
#include "src/hub/layout.h"
#include "src/hub/piece_writer.h"
#include "src/hub/tensor_source.h"
#include "src/hub/tokenizer_check.h"
#include "src/hub/transpose.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

/// The prefix of the names in these files: the family's, or without its first part, as files of a
/// model without its head have.
std::string prefix_in(const TensorSource& source, const Family& family,
                      const io::ModelConfig& model) {
  const std::vector<TensorRule> rules = family.tensors(model);
  const std::string whole(family.prefix);
  const std::string base = whole.substr(whole.find('.') + 1);
  const auto in_use = [&](const std::string& prefix) {
    return std::ranges::any_of(rules, [&](const TensorRule& rule) {
      return rule.prefixed && source.has(prefix + in_block(rule.tensor, 0));
    });
  };
  return !in_use(whole) && in_use(base) ? base : whole;
}

bool equal_values(const TensorSource& source, const std::string& one, const std::string& other) {
  const int64_t count = source.tensor(one).count();
  if (source.tensor(one).shape != source.tensor(other).shape) {
    return false;
  }
  constexpr int64_t kMost = 1 << 20;
  std::vector<float> a(static_cast<size_t>(std::min(kMost, count))), b(a.size());
  for (int64_t done = 0; done < count; done += kMost) {
    const Shape piece{std::min(kMost, count - done)};
    source.read(one, done, Tensor(a.data(), DType::fp32, piece));
    source.read(other, done, Tensor(b.data(), DType::fp32, piece));
    if (!std::equal(a.begin(), a.begin() + piece[0], b.begin())) {
      return false;
    }
  }
  return true;
}

/// The name of the tensor of a parameter.
std::string tensor_name(const Family& family, const io::ModelConfig& model,
                        const std::string& prefix, std::string_view parameter) {
  const std::vector<TensorRule> rules = family.tensors(model);
  const auto rule = std::ranges::find(rules, parameter, &TensorRule::parameter);
  return rule == rules.end() ? "" : (rule->prefixed ? prefix : "") + rule->tensor;
}

/// Where config.json ties the head to the embedding and the files disagree, the files count, as in
/// transformers 5: a head alone is also the embedding, and a head with other values is not tied.
/// Returns whether it is untied.
bool untie_head(TensorSource& source, const Family& family, const std::string& prefix,
                io::ModelConfig& model) {
  if (!model.tie_embeddings) {
    return false;
  }
  model.tie_embeddings = false;
  const std::string head = tensor_name(family, model, prefix, "head.weight");
  const std::string embedding = tensor_name(family, model, prefix, "embedding.token");
  const bool is_convertible =
      std::ranges::all_of(std::array{head, embedding}, [&](const std::string& name) {
        return !source.has(name) || io::is_convertible(source.tensor(name).type);
      });
  model.tie_embeddings = !source.has(head) || !source.has(embedding) || !is_convertible ||
                         equal_values(source, head, embedding);
  if (source.has(head) && !source.has(embedding)) {
    source.rename(head, embedding);
  }
  return !model.tie_embeddings;
}

/// The extents that a tensor has in the files: those of its place, and positions beyond --context.
std::vector<int64_t> shape_in_file(const TensorPlace& place, int64_t unused_positions) {
  std::vector<int64_t> shape = place.shape;
  if (place.positions) {
    shape.front() += unused_positions;
  }
  return shape;
}

void check_tensors(const TensorSource& source, const Layout& layout, int64_t unused_positions) {
  std::vector<std::string> missing, extra, wrong;
  std::map<std::string, bool> expected;
  for (const TensorPlace& place : layout.tensors()) {
    expected[place.name] = true;
    if (!source.has(place.name)) {
      missing.push_back(place.name);
      continue;
    }
    const SourceTensor& tensor = source.tensor(place.name);
    const SourceTensor needed{.name = place.name, .shape = shape_in_file(place, unused_positions)};
    if (tensor.shape != needed.shape) {
      wrong.push_back(fmt::format("{} has shape {} instead of {}", io::quoted_text(place.name),
                                  tensor.shape_text(), needed.shape_text()));
    }
    if (!io::is_convertible(tensor.type)) {
      fail(
          "{}: tensor {} has type {}, and weights are read from F64, F32, F16 and BF16; import "
          "the model that it was quantized from",
          source.path().string(), io::quoted_text(place.name), name_of(tensor.type));
    }
  }
  for (const auto& [name, tensor] : source.tensors()) {
    if (!expected.contains(name) && !layout.ignores(name)) {
      extra.push_back(name);
    }
  }
  if (missing.size() == 1 && extra.empty() && wrong.empty()) {
    const size_t head = layout.parameters().size() - 1;
    check(layout.parameters()[head].name != "head.weight" ||
              layout.tensor_of(layout.parameters()[head]).name != missing.front(),
          "{} has no head ({}), as files of base models ({}), and config.json does not tie the "
          "head to the embedding; import the whole model ({}), or set \"tie_word_embeddings\" to "
          "true if its head is the embedding",
          source.path().string(), io::quoted_text(missing.front()), layout.family().base,
          layout.family().architecture);
  }
  std::string faults;
  const auto add = [&](const std::string& fault) {
    faults += (faults.empty() ? "" : "; ") + fault;
  };
  if (!missing.empty()) {
    add(fmt::format("{} tensors are missing: {}", missing.size(), io::quoted_texts(missing)));
  }
  if (!extra.empty()) {
    add(fmt::format("{} tensors are of no parameter: {}", extra.size(), io::quoted_texts(extra)));
  }
  if (!wrong.empty()) {
    add(fmt::format(
        "tensor {}{}", wrong.front(),
        wrong.size() > 1 ? fmt::format(" (and {} more differ)", wrong.size() - 1) : ""));
  }
  check(faults.empty(),
        "{} does not fit its config.json ({}): {}; download config.json and weights of one version "
        "of the model",
        source.path().string(), layout.family().architecture, faults);
}

/// A tensor before it is transposed, and its flags.
struct WholeTensor {
  std::vector<std::byte> values;
  std::vector<uint8_t> kept;
};

/// Calls `piece(values, kept)` for consecutive elements of a parameter. `values` is in a buffer of
/// `writer`; the callee gives it back. `kept` is empty unless `masks`.
template <class Piece>
void for_each_piece(const TensorSource& source, const Layout& layout,
                    const ParameterPlace& parameter, DType dtype, bool masks, PieceWriter& writer,
                    WholeTensor& whole, const Piece& piece) {
  const TensorPlace& place = layout.tensor_of(parameter);
  const auto most = static_cast<int64_t>(PieceWriter::kPieceBytes / size_of(dtype));
  std::vector<uint8_t> kept(masks ? static_cast<size_t>(most) : 0);
  const auto take = [&](int64_t count) {
    return Tensor(writer.take(static_cast<size_t>(count) * size_of(dtype)).data(), dtype,
                  Shape{count});
  };
  const auto kept_of = [&](int64_t count) {
    return std::span(kept).first(masks ? static_cast<size_t>(count) : 0);
  };
  if (place.transposed) {
    const int64_t all = parameter.count();
    const auto elements = static_cast<size_t>(all);
    const Tensor tensor(grown(whole.values, elements * size_of(dtype)).data(), dtype,
                        Shape{place.rows, place.cols});
    const std::span<uint8_t> whole_kept = grown(whole.kept, masks ? elements : 0);
    source.read(place.name, 0, tensor.reshaped(Shape{all}), whole_kept);
    check(parameter.cols <= most, "tensor {} has {} rows, and at most {} are supported", place.name,
          parameter.cols, most);
    const int64_t rows = most / parameter.cols;
    for (int64_t row = 0; row < parameter.rows; row += rows) {
      const int64_t count = std::min(rows, parameter.rows - row);
      const Tensor values = take(count * parameter.cols);
      transpose(tensor, row, values.reshaped(Shape{count, parameter.cols}));
      const auto flags = kept_of(count * parameter.cols);
      if (masks) {
        transpose_bytes(whole_kept, place.rows, place.cols, row, count, flags);
      }
      piece(values, flags);
    }
    return;
  }
  for (const RowRun& run : parameter.runs) {
    const int64_t all = run.rows * parameter.cols;
    for (int64_t done = 0; done < all; done += most) {
      const int64_t count = std::min(most, all - done);
      const Tensor values = take(count);
      const auto flags = kept_of(count);
      source.read(place.name, run.tensor_row * parameter.cols + done, values, flags);
      if (place.plus_one) {
        std::ranges::transform(values.span<float>(), values.get<float>(),
                               [](float x) { return x + 1.0F; });
      }
      piece(values, flags);
    }
  }
}

/// The type that a tensor shall have: --dtype, or as in the files.
DType tensor_dtype(const TensorSource& source, const Layout& layout, const ImportOptions& options,
                   size_t tensor) {
  const io::SafetensorsType type = source.tensor(layout.tensors()[tensor].name).type;
  return options.dtype.value_or(io::same_bits(type).value_or(DType::fp32));
}

class Importer {
 public:
  Importer(const TensorSource& source, const Layout& layout, const ImportOptions& options,
           ImportReport& report)
      : source_(source),
        layout_(layout),
        options_(options),
        report_(report),
        checkpoint_(options.to) {}

  void run(const io::CheckpointMeta& meta) {
    checkpoint_.write_meta(meta);
    io::ReservedDatasetWriter file(checkpoint_.temporary());
    PieceWriter writer(layout_.transposes() ? PieceWriter::kBuffersOfBursts
                                            : PieceWriter::kBuffers);
    int64_t all = 0;
    for (const ParameterPlace& parameter : layout_.parameters()) {
      all += parameter.count();
    }
    for (const ParameterPlace& parameter : layout_.parameters()) {
      const bool masks = parameter.prunable && (options_.zeros_are_pruned || is_masked(parameter));
      masks ? write_masked(parameter, writer) : write_full(parameter, file, writer);
      report_.parameters += parameter.count();
      if (options_.on_progress) {
        options_.on_progress(report_.parameters, all);
      }
    }
    note_zeros();
    finish_writing();
    writer.finish();
    for (const auto& [dataset, checksum] : checksums_) {
      checkpoint_.set_checksum(dataset, checksum->value());
    }
    file.finish();
    checkpoint_.commit();
  }

  /// Of the stored values.
  DType dtype_of(const ParameterPlace& parameter) const {
    return layout_.tensor_of(parameter).plus_one
               ? DType::fp32
               : tensor_dtype(source_, layout_, options_, parameter.tensor);
  }

 private:
  bool is_masked(const ParameterPlace& parameter) const {
    return source_.tensor(layout_.tensor_of(parameter).name).masked;
  }

  void write_full(const ParameterPlace& parameter, io::ReservedDatasetWriter& file,
                  PieceWriter& writer) {
    finish_writing();
    const DType dtype = dtype_of(parameter);
    const int64_t count = parameter.count();
    sparse::check_size(parameter.name, count);
    const io::ReservedDataset dataset =
        checkpoint_
            .reserve(
                {.name = parameter.name, .shape = parameter.shape, .nnz = count, .dtype = dtype})
            .front();
    const auto& checksum =
        checksums_.emplace_back(dataset, std::make_unique<io::CheckpointChecksum>()).second;
    uint64_t offset = dataset.offset;
    for_each_piece(
        source_, layout_, parameter, dtype, false, writer, whole_,
        [&](const Tensor& values, std::span<const uint8_t>) {
          if (parameter.prunable) {
            zeros_ += zeros_in(values);
            prunable_ += values.count();
          }
          const std::span piece(static_cast<const std::byte*>(values.data), values.bytes());
          writer.write(piece,
                       [&file, offset, sum = checksum.get()](std::span<const std::byte> bytes) {
                         sum->add(bytes);
                         file.write(offset, bytes);
                       });
          offset += piece.size();
        });
    report_.kept += count;
    report_.bytes += static_cast<uint64_t>(count) * size_of(dtype);
  }

  void write_masked(const ParameterPlace& parameter, PieceWriter& writer) {
    const DType dtype = dtype_of(parameter);
    const int64_t count = parameter.count();
    const bool by_index = is_masked(parameter);
    auto array = std::make_shared<MaskedArrayBuilder>(count, dtype);
    for_each_piece(source_, layout_, parameter, dtype, by_index, writer, whole_,
                   [&](const Tensor& values, std::span<uint8_t> kept) {
                     drop_zeros(values, kept);
                     array->add(values, kept);
                     writer.write({static_cast<const std::byte*>(values.data), values.bytes()},
                                  [](std::span<const std::byte>) {});  // gives the buffer back
                   });
    // Its mask is encoded, and it is written, while the next one is read.
    finish_writing();
    writing_ = std::async(std::launch::async,
                          [this, &parameter, dtype, array] { write(parameter, dtype, *array); });
  }

  /// Waits for the parameter that is written, before anything else is.
  void finish_writing() {
    if (writing_.valid()) {
      writing_.get();
    }
  }

  void write(const ParameterPlace& parameter, DType dtype, const MaskedArrayBuilder& array) {
    const int64_t count = parameter.count();
    const sparse::Mask mask = array.mask();
    const bool full = array.kept() == count;
    Arena arena;
    const sparse::Index index(arena, mask,
                              full ? sparse::Encoding::full : sparse::Encoding::bitmap);
    const sparse::FileIndex encoded = sparse::to_file(index);
    // Only read: a tensor is a view of memory that may be written.
    auto* values = const_cast<std::byte*>(array.values().data());
    checkpoint_.write_parameter(
        {.name = parameter.name,
         .shape = parameter.shape,
         .encoding = std::string(encoded.encoding.name),
         .nnz = array.kept(),
         .values = Tensor(values, dtype, full ? parameter.shape : Shape{array.kept()}),
         .index = encoded.bytes});
    report_.kept += array.kept();
    report_.bytes += array.values().size();
  }

  /// Zeros that look like masks of pruning, and stay values.
  void note_zeros() const {
    constexpr double kFew = 0.1;
    const double share =
        static_cast<double>(zeros_) / static_cast<double>(std::max<int64_t>(prunable_, 1));
    if (share >= kFew) {
      report_.notes.push_back(fmt::format(
          "{:.1f} % of the prunable elements are zeros, which are now values like others: training "
          "would change them; to keep them as masks, import with --zeros-are-pruned",
          100 * share));
    }
  }

  /// Of fp32, bf16 and fp16 the zeros are those without a bit below the sign.
  static int64_t zeros_in(const Tensor& values) {
    const auto count = [&]<class Bits>(Bits) {
      int64_t zeros = 0;
      const auto* bits = static_cast<const Bits*>(values.data);
      for (int64_t i = 0; i < values.count(); ++i) {
        zeros += static_cast<Bits>(bits[i] << 1U) == 0 ? 1 : 0;
      }
      return zeros;
    };
    return size_of(values.dtype) == sizeof(uint16_t) ? count(uint16_t{0}) : count(uint32_t{0});
  }

  /// With --zeros-are-pruned also of kept elements.
  void drop_zeros(const Tensor& values, std::span<uint8_t> kept) const {
    if (!options_.zeros_are_pruned || kept.empty()) {
      return;
    }
    with_number(values.dtype, [&]<class T>(T) {
      const auto all = values.span<T>();
      for (size_t i = 0; i < kept.size(); ++i) {
        kept[i] = to_float(all[i]) == 0.0F ? 0 : kept[i];
      }
    });
  }

  const TensorSource& source_;
  const Layout& layout_;
  const ImportOptions& options_;
  ImportReport& report_;
  io::CheckpointWriter checkpoint_;
  WholeTensor whole_;
  int64_t zeros_ = 0, prunable_ = 0;  ///< elements of prunable parameters without masks
  /// Of datasets whose bytes the writing thread sums.
  std::vector<std::pair<io::ReservedDataset, std::unique_ptr<io::CheckpointChecksum>>> checksums_{};
  std::future<void> writing_{};  ///< last: its end is waited for before the others are destroyed
};

std::string type_name(DType dtype) { return std::string(io::name_of(io::type_with_bits(dtype))); }

/// For export to write the same files again.
FileFacts facts_of(const TensorSource& source, const Layout& layout, const ImportOptions& options) {
  FileFacts facts{.prefix = layout.prefix(),
                  .type = type_name(tensor_dtype(source, layout, options, 0))};
  for (size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorPlace& place = layout.tensors()[t];
    const DType dtype = tensor_dtype(source, layout, options, t);
    if (type_name(dtype) != facts.type) {
      facts.other_types[place.name] = type_name(dtype);
    }
    const int64_t rows = place.plus_one ? place.rows : place.skipped;
    if (rows > 0) {
      const int64_t count = rows * place.cols;
      std::vector<std::byte> bytes(static_cast<size_t>(count) * size_of(dtype));
      const Tensor values(bytes.data(), dtype, Shape{count});
      source.read(place.name, 0, values);
      std::vector<float>& numbers = facts.numbers[place.name];
      numbers.resize(static_cast<size_t>(count));
      convert_elements(values, Tensor(numbers.data(), DType::fp32, Shape{count}));
    }
  }
  return facts;
}

/// The parameters of a network; its Failure begins with the file that describes the network.
std::vector<sparse::ParameterSpec> checked_specs(const io::Config& config,
                                                 const std::string& file) {
  try {
    config::validate(config);
    return specs_of(config.model);
  } catch (const Failure& failure) {
    fail("{} describes a network that espalier does not run: {}", file, failure.what());
  }
}

}  // namespace

ImportReport import_model(const ImportOptions& options) {
  ImportReport report;
  std::error_code ignored;
  const fs::path folder =
      fs::is_directory(options.from, ignored) ? options.from : options.from.parent_path();
  check(io::path_exists(options.from), "{} does not exist; name the directory of a model",
        options.from.string());
  TensorSource source(options.from);
  auto texts = read_texts(folder, report.notes);
  const ConfigJson json(texts.at(std::string(kConfigText)), (folder / "config.json").string());
  check_common_keys(json);
  const Family& family = family_of(json);
  report.architecture = family.architecture;

  io::Config& config = report.config;
  family.read(json, config.model);
  const int64_t positions = json.number(std::string(family.positions_key));
  check(options.context <= positions,
        "--context {} is more than the {} positions of the model ({} in {})", options.context,
        positions, family.positions_key, json.file());
  config.model.context = options.context > 0 ? options.context : positions;
  check_sizes(config.model, json.file());
  config.data.kind = "tokens";
  const std::string prefix = prefix_in(source, family, config.model);
  if (untie_head(source, family, prefix, config.model)) {
    Json changed = json.json();
    changed["tie_word_embeddings"] = false;
    texts[std::string(kConfigText)] = changed.dump(2) + "\n";
    report.notes.push_back(fmt::format(
        "{} says that the head is the embedding (\"tie_word_embeddings\"), and the files have both "
        "with different values: the checkpoint has both, and says that they are not tied",
        json.file()));
  }
  const Layout layout(family, config.model, checked_specs(config, json.file()), prefix);
  check_tensors(source, layout, positions - config.model.context);
  if (const auto keys = keys_without_effect(json); !keys.empty()) {
    report.notes.push_back(
        fmt::format("{} has keys without effect on {}, here and in transformers: {}", json.file(),
                    family.architecture, io::quoted_texts(keys)));
  }
  if (!options.tokenizer) {
    io::remove_tokenizer(texts);
  }
  report.tokens = check_tokenizer(texts, folder, json, config.model.vocabulary, report.notes);
  end_tokens(texts, config.model.vocabulary, folder.empty() ? "." : folder.string(), report.notes);
  texts[std::string(kLayoutText)] = text_of(facts_of(source, layout, options));

  config.train.dtype = name_of(tensor_dtype(source, layout, options, 0));
  Importer(source, layout, options, report)
      .run({.config = config::to_toml(config), .extra = texts});
  return report;
}

}  // namespace espalier::hub
