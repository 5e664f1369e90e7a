#include "src/hub/import.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <future>
#include <memory>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/stored_tokenizer.h"
#include "io/files/folders.h"
#include "io/run/parse_json.h"
#include "io/safetensors/json_events.h"
#include "io/safetensors/numbers.h"
#include "sparse/index/file_index.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/core/arena.h"
#include "src/hub/directory.h"
#include "src/hub/layout.h"
#include "src/hub/piece_writer.h"
#include "src/hub/tensor_source.h"
#include "src/hub/transpose.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

/// The prefix of the names in these files: the family's, or an end of it, as files of a model
/// without its head have.
std::string prefix_in(const TensorSource& source, const Family& family,
                      const io::ModelConfig& model) {
  const std::vector<TensorRule> rules = family.tensors(model);
  const auto rule = std::ranges::find(rules, true, &TensorRule::prefixed);
  std::string_view prefix = family.prefix;
  while (rule != rules.end()) {
    if (source.has(std::string(prefix) + rule->tensor)) {
      return std::string(prefix);
    }
    if (prefix.empty()) {
      break;
    }
    prefix.remove_prefix(prefix.find('.') + 1);
  }
  return std::string(family.prefix);
}

/// The extents that a tensor has in the files: those of its place, or more positions.
bool fits(const SourceTensor& tensor, const TensorPlace& place) {
  if (!place.positions) {
    return tensor.shape == place.shape;
  }
  return tensor.shape.size() == place.shape.size() && tensor.shape[0] >= place.shape[0] &&
         std::equal(tensor.shape.begin() + 1, tensor.shape.end(), place.shape.begin() + 1);
}

void check_tensors(const TensorSource& source, const Layout& layout) {
  std::vector<std::string> missing, extra, wrong;
  std::map<std::string, bool> expected;
  for (const TensorPlace& place : layout.tensors()) {
    expected[place.name] = true;
    if (!source.has(place.name)) {
      missing.push_back(place.name);
      continue;
    }
    const SourceTensor& tensor = source.tensor(place.name);
    if (!fits(tensor, place)) {
      const SourceTensor needed{.name = place.name, .shape = place.shape};
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
    for (const ParameterPlace& parameter : layout_.parameters()) {
      const bool masks = parameter.prunable && (options_.zeros_are_pruned || is_masked(parameter));
      masks ? write_masked(parameter, writer) : write_full(parameter, file, writer);
      report_.parameters += parameter.count();
    }
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
  /// Of datasets whose bytes the writing thread sums.
  std::vector<std::pair<io::ReservedDataset, std::unique_ptr<io::CheckpointChecksum>>> checksums_{};
  std::future<void> writing_{};  ///< last: its end is waited for before the others are destroyed
};

/// Tokens that slow tokenizers of `transformers` add to SentencePiece's: those of
/// tokenizer_config.json that are not in the model.
int64_t added_tokens(const std::map<std::string, std::string>& texts, int64_t tokens) {
  const auto found = texts.find(std::string(io::kHubTexts) + std::string(io::kTokenizerConfigFile));
  const Json config = found == texts.end() ? Json() : io::parse_json<Json>(found->second);
  if (!config.is_object() || !config.contains("added_tokens_decoder") ||
      !config["added_tokens_decoder"].is_object()) {
    return 0;
  }
  return std::ranges::count_if(config["added_tokens_decoder"].items(), [&](const auto& item) {
    int64_t id = -1;
    std::from_chars(item.key().data(), item.key().data() + item.key().size(), id);
    return id >= tokens;
  });
}

/// The tokenizer's ids must be rows of the embedding. 0: there is none.
int64_t check_tokenizer(const std::map<std::string, std::string>& texts, const fs::path& folder,
                        int64_t rows, std::vector<std::string>& notes) {
  const auto stored = io::stored_tokenizer(texts, folder.string());
  if (!stored) {
    return 0;
  }
  const std::string file = (folder / stored->file.name).string();
  const int64_t tokens = [&] {
    try {
      const auto config =
          texts.find(std::string(io::kHubTexts) + std::string(io::kTokenizerConfigFile));
      return io::Tokenizer::from_text(stored->bytes, file,
                                      config == texts.end() ? std::string() : config->second)
          .vocabulary();
    } catch (const Failure& failure) {
      fail("{}; --no-tokenizer imports the model without it", failure.what());
    }
  }();
  if (const int64_t added = stored->file.is_binary ? added_tokens(texts, tokens) : 0; added > 0) {
    notes.push_back(fmt::format(
        "{} has {} tokens that are not in {}: their texts are encoded as other text; transformers "
        "writes a tokenizer.json with them: "
        "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        io::kTokenizerConfigFile, added, stored->file.name));
  }
  check(tokens <= rows,
        "{} has tokens up to {}, but the embedding of the model has {} rows; download the "
        "tokenizer of this model, or add --no-tokenizer",
        file, tokens - 1, rows);
  if (tokens < rows) {
    notes.push_back(
        fmt::format("the embedding has {} rows, and the tokenizer {} tokens", rows, tokens));
  }
  return tokens;
}

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

int64_t context_of(const ConfigJson& json, const Family& family, int64_t wanted) {
  const int64_t most = json.number(std::string(family.positions_key));
  check(wanted <= most, "--context {} is more than the {} positions of the model ({} in {})",
        wanted, most, family.positions_key, json.file());
  return wanted > 0 ? wanted : most;
}

}  // namespace

ImportReport import_model(const ImportOptions& options) {
  ImportReport report;
  std::error_code ignored;
  const fs::path folder =
      fs::is_directory(options.from, ignored) ? options.from : options.from.parent_path();
  check(io::path_exists(options.from), "{} does not exist; name the directory of a model",
        options.from.string());
  const TensorSource source(options.from);
  auto texts = read_texts(folder, report.notes);
  const ConfigJson json(texts.at(std::string(kConfigText)), (folder / "config.json").string());
  check_common_keys(json);
  const Family& family = family_of(json);
  report.architecture = family.architecture;

  io::Config& config = report.config;
  family.read(json, config.model);
  config.model.context = context_of(json, family, options.context);
  check_sizes(config.model, json.file());
  const Layout layout(family, config.model, specs_of(config.model),
                      prefix_in(source, family, config.model));
  check_tensors(source, layout);
  if (!options.tokenizer) {
    io::remove_tokenizer(texts);
  }
  report.tokens = check_tokenizer(texts, folder, config.model.vocabulary, report.notes);
  texts[std::string(kLayoutText)] = text_of(facts_of(source, layout, options));

  config.data.kind = "tokens";
  config.train.dtype = name_of(tensor_dtype(source, layout, options, 0));
  config::validate(config);
  Importer(source, layout, options, report)
      .run({.config = config::to_toml(config), .extra = texts});
  return report;
}

}  // namespace espalier::hub
