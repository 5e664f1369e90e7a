#include "src/hub/export.h"

#include <algorithm>
#include <cstring>

#include "io/checkpoint/stored_tokenizer.h"
#include "io/files/folders.h"
#include "io/run/metrics.h"
#include "io/safetensors/numbers.h"
#include "io/safetensors/writer.h"
#include "src/config/parse.h"
#include "src/hub/directory.h"
#include "src/hub/layout.h"
#include "src/hub/network_settings.h"
#include "src/hub/parameter_source.h"
#include "src/hub/piece_writer.h"
#include "src/hub/tensor_source.h"
#include "src/hub/transpose.h"
#include "src/model/networks/registry.h"
#include "src/train/masks/mask_files.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBitsOfByte = 8;

/// As transformers names it.
std::string_view torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::fp16 ? "float16" : "float32";
}

/// The network of a checkpoint, and the family that describes it.
struct Model {
  io::ModelConfig config;
  const Family* family = nullptr;
  FileFacts facts;
  std::string imported{};  ///< config.json that it was imported with; empty: none
};

/// Throws Failure for a network that config.json, imported or new, does not describe.
void check_described(const Model& model) {
  const Json json = model.imported.empty() ? model.family->write(complete(model.config))
                                           : ConfigJson(model.imported, "config.json").json();
  io::ModelConfig described;
  model.family->read(ConfigJson(json.dump(), "config.json"), described);
  described.context = model.config.context;
  const std::string difference = network_difference(model.config, described);
  check(difference.empty(),
        "{} of this network and of {} as its config.json describes it; export plain arrays with -o "
        "FILE.h5",
        difference, model.family->architecture);
}

Model model_of(const io::CheckpointReader& reader, const io::CheckpointMeta& meta) {
  const std::string file = reader.path().string();
  check(!meta.config.empty(),
        "{} does not describe its network (it was pruned without a config); export plain arrays "
        "with -o FILE.h5",
        file);
  const auto text = [&](std::string_view name) {
    const auto found = meta.extra.find(std::string(name));
    return found == meta.extra.end() ? std::string() : found->second;
  };
  Model model{.config = config::parse_saved(meta.config, file + " (config)").model};
  const model::NetworkKind& network = model::network_of(model.config);
  check(network.input_dtype == DType::int32,
        "{} holds a network of kind \"{}\", which no Hugging Face architecture computes; export "
        "plain arrays with -o FILE.h5",
        file, network.name);
  model.config.vocabulary = network
                                .problem_of(model.config,
                                            [&](const std::string& name) {
                                              check(reader.has(name),
                                                    "{} is a checkpoint of another model: it has "
                                                    "no parameter \"{}\"",
                                                    file, name);
                                              return reader.info(name).shape;
                                            })
                                .classes;
  model.imported = text(kConfigText);
  if (model.imported.empty()) {
    model.family = &family_of(model.config);
    model.facts.prefix = model.family->prefix;
  } else {
    model.family =
        &family_of(ConfigJson(model.imported, fmt::format("{} ({})", file, kConfigText)));
    check(model.family->fits(model.config),
          "{}: the network is no {}, which its {} describes; export plain arrays with -o FILE.h5",
          file, model.family->architecture, kConfigText);
    model.facts = file_facts_of(text(kLayoutText), file);
  }
  check_described(model);
  return model;
}

/// The imported text where it still holds, else with the keys that changed.
std::string config_json_of(const Model& model, DType dtype) {
  Json json = model.imported.empty() ? model.family->write(complete(model.config))
                                     : ConfigJson(model.imported, "config.json").json();
  bool changed = model.imported.empty();
  if (changed) {  // else transformers takes those of the family's first tokenizer
    for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      json[token] = nullptr;
    }
  }
  const auto set = [&](const std::string& key, const Json& value) {
    if (json[key] != value) {
      json[key] = value;
      changed = true;
    }
  };
  // transformers 5 writes "dtype"; its readers take both.
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (json.contains(key) || (key == std::string_view("torch_dtype") && !json.contains("dtype"))) {
      set(key, torch_name(dtype));
    }
  }
  set("model_type", model.family->name);
  if (std::ranges::any_of(model.family->tensors(model.config), &TensorRule::positions)) {
    const std::string key(model.family->positions_key);
    const std::string other = "max_position_embeddings";  // of GPT-2, where it takes precedence
    set(key, model.config.context);
    if (key != other && json.contains(other)) {
      set(other, model.config.context);
    }
  }
  return changed ? json.dump(2) + "\n" : model.imported;
}

/// The elements of tensors, in pieces.
class TensorPieces {
 public:
  TensorPieces(const io::CheckpointReader& reader, const Layout& layout, const FileFacts& facts,
               PieceWriter& writer)
      : reader_(reader), layout_(layout), facts_(facts), writer_(writer) {}

  using Piece = std::function<void(const Tensor& values, std::span<const uint8_t> kept)>;
  /// Calls `piece` for consecutive elements of a tensor, as `dtype`. `values` is in a buffer of the
  /// writer, and `piece` gives it back. `kept`: 1 for each kept element, else 0; empty without
  /// `masks`.
  void run(const TensorPlace& place, DType dtype, bool masks, const Piece& piece) {
    dtype_ = dtype;
    most_ = static_cast<int64_t>(PieceWriter::kPieceBytes / size_of(dtype));
    kept_.resize(masks ? static_cast<size_t>(most_) : 0);
    std::map<size_t, ParameterSource> sources;
    for (const size_t p : place.parameters) {
      sources.try_emplace(p, reader_, layout_.parameters()[p].name,
                          place.plus_one ? DType::fp32 : dtype);
    }
    if (place.transposed) {
      run_transposed(place, sources.begin()->second, piece);
    } else {
      write_skipped(place, piece);
      for (const RowRun& run : place.runs) {
        const int64_t first = run.row * place.cols;
        const int64_t count = run.rows * place.cols;
        for (int64_t done = 0; done < count; done += most_) {
          const Tensor values = take(std::min(most_, count - done));
          const auto kept = kept_of(values.count());
          ParameterSource& source = sources.at(run.parameter);
          if (place.plus_one) {
            read_minus_one(place, source, first + done, values);
          } else {
            source.read(first + done, values, kept);
          }
          piece(values, kept);
        }
      }
    }
    for (auto& [p, source] : sources) {
      source.finish();
    }
  }

 private:
  Tensor take(int64_t count) {
    return {writer_.take(static_cast<size_t>(count) * size_of(dtype_)).data(), dtype_,
            Shape{count}};
  }
  std::span<uint8_t> kept_of(int64_t count) {
    return std::span(kept_).first(std::min(kept_.size(), static_cast<size_t>(count)));
  }

  /// The numbers of the imported file; empty: there are none.
  std::span<const float> numbers_of(const TensorPlace& place, int64_t count) const {
    const auto found = facts_.numbers.find(place.name);
    return found != facts_.numbers.end() && std::ssize(found->second) == count
               ? std::span<const float>(found->second)
               : std::span<const float>();
  }

  /// Rows that the network does not use: those of the imported file, or zeros.
  void write_skipped(const TensorPlace& place, const Piece& piece) {
    const int64_t count = place.skipped * place.cols;
    std::vector<float> values(static_cast<size_t>(count));
    std::ranges::copy(numbers_of(place, count), values.begin());
    for (int64_t done = 0; done < count; done += most_) {
      const Tensor out = take(std::min(most_, count - done));
      convert_numbers(place, Tensor(values.data() + done, DType::fp32, Shape{out.count()}), out);
      const auto kept = kept_of(out.count());
      std::ranges::fill(kept, uint8_t{1});
      piece(out, kept);
    }
  }

  /// Values of the tensor whose parameter is larger by 1: where that is the imported number + 1,
  /// which rounding may have changed, the imported number.
  void read_minus_one(const TensorPlace& place, ParameterSource& source, int64_t first,
                      const Tensor& out) {
    std::vector<float> values(static_cast<size_t>(out.count()));
    const Tensor view(values.data(), DType::fp32, Shape{out.count()});
    source.read(first, view, {});
    const auto imported = numbers_of(place, place.rows * place.cols);
    for (size_t i = 0; i < values.size(); ++i) {
      const float before = imported.empty() ? 0 : imported[static_cast<size_t>(first) + i];
      values[i] = !imported.empty() && before + 1.0F == values[i] ? before : values[i] - 1.0F;
    }
    convert_numbers(place, view, out);
  }

  static void convert_numbers(const TensorPlace& place, const Tensor& from, const Tensor& to) {
    convert_elements(from, to);
    if (to.dtype != DType::fp32) {
      check_rounded(to, place.name);
    }
  }

  void run_transposed(const TensorPlace& place, ParameterSource& source, const Piece& piece) {
    const auto elements = static_cast<size_t>(place.rows * place.cols);
    const bool flags = source.masked() && !kept_.empty();
    const Tensor matrix(grown(whole_, elements * size_of(dtype_)).data(), dtype_,
                        Shape{place.cols, place.rows});
    const std::span<uint8_t> dense_kept = grown(whole_kept_, flags ? elements : 0);
    source.read(0, matrix.reshaped(Shape{place.rows * place.cols}), dense_kept);
    const int64_t rows = std::max<int64_t>(most_ / place.cols, 1);
    for (int64_t row = 0; row < place.rows; row += rows) {
      const int64_t count = std::min(rows, place.rows - row);
      const Tensor values = take(count * place.cols);
      transpose(matrix, row, values.reshaped(Shape{count, place.cols}));
      const auto kept = kept_of(values.count());
      if (flags) {
        transpose_bytes(dense_kept, place.cols, place.rows, row, count, kept);
      } else {
        std::ranges::fill(kept, uint8_t{1});
      }
      piece(values, kept);
    }
  }

  const io::CheckpointReader& reader_;
  const Layout& layout_;
  const FileFacts& facts_;
  PieceWriter& writer_;
  DType dtype_ = DType::fp32;
  int64_t most_ = 1;  ///< elements of a piece
  std::vector<uint8_t> kept_{};
  std::vector<std::byte> whole_{};     ///< a matrix before it is transposed
  std::vector<uint8_t> whole_kept_{};  ///< its flags
};

/// By its name in files; none: another one.
std::optional<DType> dtype_of_type(std::string_view name) {
  const auto type = io::safetensors_type(name);
  return type ? io::same_bits(*type) : std::nullopt;
}

class Exporter {
 public:
  Exporter(const io::CheckpointReader& reader, const Layout& layout, const FileFacts& facts,
           const ExportOptions& options, ExportReport& report)
      : reader_(reader), layout_(layout), facts_(facts), options_(options), report_(report) {}

  /// --dtype, that of the imported file, or that of the values.
  DType dtype_of(const TensorPlace& place) const {
    const auto other = facts_.other_types.find(place.name);
    const std::string& type = other == facts_.other_types.end() ? facts_.type : other->second;
    const DType stored = reader_.info(layout_.parameters()[place.parameters.front()].name).dtype;
    return options_.dtype.value_or(dtype_of_type(type).value_or(stored));
  }

  void run(const fs::path& folder) {
    list_tensors();
    const io::SafetensorsOptions files{.max_shard_bytes = options_.shard_bytes};
    if (options_.dense) {
      dense_.emplace(folder / "model.safetensors", dense_list_, files);
      report_.files += dense_->files().size();
    }
    if (options_.sparse) {
      sparse_.emplace(folder / "sparse.safetensors", sparse_list_, files);
      report_.files += sparse_->files().size();
    }
    PieceWriter writer(layout_.transposes() ? PieceWriter::kBuffersOfBursts
                                            : PieceWriter::kBuffers);
    TensorPieces pieces(reader_, layout_, facts_, writer);
    int64_t all = 0;
    for (const TensorPlace& place : layout_.tensors()) {
      all += place.count();
    }
    int64_t done = 0;
    for (const TensorPlace& place : layout_.tensors()) {
      write_tensor(place, pieces, writer);
      done += place.count();
      if (options_.on_progress) {
        options_.on_progress(done, all);
      }
    }
    writer.finish();
    for (auto* one : {&dense_, &sparse_}) {
      if (one->has_value()) {
        (*one)->commit();
      }
    }
  }

 private:
  int64_t kept_of(const TensorPlace& place) const {
    int64_t kept = place.skipped * place.cols;
    for (const size_t p : place.parameters) {
      kept += reader_.info(layout_.parameters()[p].name).nnz;
    }
    return kept;
  }

  void list_tensors() {
    for (const TensorPlace& place : layout_.tensors()) {
      const DType dtype = dtype_of(place);
      const io::SafetensorsType type = io::type_with_bits(dtype);
      dense_list_.push_back({.name = place.name, .type = type, .shape = place.shape});
      const uint64_t bytes = static_cast<uint64_t>(place.count()) * size_of(dtype);
      report_.dense_bytes += bytes;
      const int64_t kept = kept_of(place);
      if (kept == place.count()) {
        sparse_list_.push_back(dense_list_.back());
        report_.sparse_bytes += bytes;
        continue;
      }
      const int64_t index_bytes = (place.count() + kBitsOfByte - 1) / kBitsOfByte;
      const auto add = [&](std::string_view suffix, io::SafetensorsType of, int64_t extent) {
        sparse_list_.push_back(
            {.name = place.name + std::string(suffix), .type = of, .shape = {extent}});
      };
      add(kValuesSuffix, type, kept);
      add(kIndexSuffix, io::SafetensorsType::u8, index_bytes);
      add(kShapeSuffix, io::SafetensorsType::i64, std::ssize(place.shape));
      report_.sparse_bytes += static_cast<uint64_t>(kept) * size_of(dtype) +
                              static_cast<uint64_t>(index_bytes) +
                              place.shape.size() * sizeof(int64_t);
    }
  }

  void write_tensor(const TensorPlace& place, TensorPieces& pieces, PieceWriter& writer) {
    const bool masked = options_.sparse && kept_of(place) < place.count();
    std::vector<uint8_t> index(
        masked ? static_cast<size_t>(place.count() + kBitsOfByte - 1) / kBitsOfByte : 0);
    int64_t next = 0;
    pieces.run(place, dtype_of(place), masked,
               [&](const Tensor& values, std::span<const uint8_t> kept) {
                 if (masked) {
                   mark(kept, next, index);
                   next += values.count();
                   write_kept(place.name, values, kept, writer);
                 }
                 const std::span bytes(static_cast<const std::byte*>(values.data), values.bytes());
                 writer.write(bytes, [this, &place, masked](std::span<const std::byte> piece) {
                   if (dense_) {
                     dense_->write_bytes(place.name, piece);
                   }
                   if (sparse_ && !masked) {
                     sparse_->write_bytes(place.name, piece);
                   }
                 });
               });
    if (masked) {
      write_index(place, index, writer);
    }
  }

  static void mark(std::span<const uint8_t> kept, int64_t first, std::span<uint8_t> index) {
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto at = static_cast<size_t>(first) + i;
      index[at / kBitsOfByte] =
          static_cast<uint8_t>(index[at / kBitsOfByte] | kept[i] << (at % kBitsOfByte));
    }
  }

  /// Writes the kept ones of `values` on the writing thread.
  void write_kept(const std::string& name, const Tensor& values, std::span<const uint8_t> kept,
                  PieceWriter& writer) {
    const size_t width = size_of(values.dtype);
    const std::span<std::byte> packed = writer.take(values.bytes());
    const auto* from = static_cast<const std::byte*>(values.data);
    size_t bytes = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] != 0) {
        std::memcpy(packed.data() + bytes, from + i * width, width);
        bytes += width;
      }
    }
    writer.write(packed.first(bytes),
                 [this, to = name + std::string(kValuesSuffix)](std::span<const std::byte> piece) {
                   sparse_->write_bytes(to, piece);
                 });
  }

  void write_index(const TensorPlace& tensor, std::span<const uint8_t> index, PieceWriter& writer) {
    const auto send = [&](std::string_view suffix, std::span<const std::byte> bytes) {
      while (!bytes.empty()) {
        const auto piece = bytes.first(std::min(bytes.size(), PieceWriter::kPieceBytes));
        const std::span<std::byte> buffer = writer.take(piece.size());
        std::ranges::copy(piece, buffer.begin());
        writer.write(
            buffer, [this, to = tensor.name + std::string(suffix)](std::span<const std::byte> one) {
              sparse_->write_bytes(to, one);
            });
        bytes = bytes.subspan(piece.size());
      }
    };
    send(kIndexSuffix, std::as_bytes(index));
    send(kShapeSuffix, std::as_bytes(std::span(tensor.shape)));
  }

  const io::CheckpointReader& reader_;
  const Layout& layout_;
  const FileFacts& facts_;
  const ExportOptions& options_;
  ExportReport& report_;
  std::vector<io::SafetensorsEntry> dense_list_{}, sparse_list_{};
  std::optional<io::SafetensorsWriter> dense_{}, sparse_{};
};

}  // namespace

ExportReport export_model(const ExportOptions& options) {
  ExportReport report;
  const io::CheckpointReader reader(options.from);
  const io::CheckpointMeta meta = reader.meta();
  const Model model = model_of(reader, meta);
  const auto specs = specs_of(model.config);
  train::check_same_parameters(reader, specs);
  const Layout layout(*model.family, model.config, specs, model.facts.prefix);
  report.architecture = model.family->architecture;
  report.tensors = layout.tensors().size();

  AtomicFolder folder(options.to);
  Exporter exporter(reader, layout, model.facts, options, report);
  exporter.run(folder.temporary());
  const auto texts = io::texts_of_model(meta);
  write_texts(folder.temporary(), texts);
  report.tokenizer = io::stored_tokenizer(texts, options.from.string()).has_value();
  io::write_text_atomically(folder.temporary() / "config.json",
                            config_json_of(model, exporter.dtype_of(layout.tensors().front())));
  folder.commit();
  return report;
}

}  // namespace espalier::hub
