#include "io/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "io/tokenizer/utf8.h"

namespace espalier::io {
namespace {

constexpr std::string_view kPreTokenizers = "ByteLevel, Split, Digits, Metaspace, Sequence";
constexpr std::string_view kBehaviours =
    "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous";
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

PreTokenizer PreTokenizer::read(const JsonField& field) {
  PreTokenizer out;
  if (!field.is_null()) {
    out.add(field);
  }
  out.find_cuts();
  return out;
}

void PreTokenizer::add(const JsonField& field) {
  if (bytes_) {
    field.refuse("stands behind ByteLevel, which is supported only as the last one");
  }
  const std::string& type = field.type();
  if (type == "Sequence") {
    for (const JsonField& element : field.at("pretokenizers").elements()) {
      add(element);
    }
  } else if (type == "ByteLevel") {
    add_byte_level(field);
  } else if (type == "Metaspace") {
    add_metaspace(field);
  } else if (type == "Split") {
    add_split(field);
  } else if (type == "Digits") {
    Stage stage;
    stage.pattern.push_back(Pattern::regex("\\p{N}", field));
    stage.pattern[0].set_local();
    stage.behaviour =
        field.maybe("individual_digits").flag(false) ? Behaviour::isolated : Behaviour::contiguous;
    stages_.push_back(std::move(stage));
  } else {
    field.refuse_type(kPreTokenizers);
  }
}

void PreTokenizer::add_byte_level(const JsonField& field) {
  Stage stage;
  if (field.maybe("add_prefix_space").flag(true)) {
    stage.prefix = " ";
    stage.prefixed = Prefixed::always;
  }
  if (field.maybe("use_regex").flag(true)) {
    stage.pattern.push_back(Pattern::regex(kGpt2Pattern, field));
  }
  stages_.push_back(std::move(stage));
  bytes_ = true;
}

void PreTokenizer::add_metaspace(const JsonField& field) {
  const JsonField replacement = field.at("replacement");
  const std::string& space = replacement.text();
  if (space.empty() || space.size() != utf8_bytes(space[0])) {
    replacement.refuse("is not one character");
  }
  Stage stage{.space = space, .prefix = space, .pattern = {}};
  const JsonField scheme = field.maybe("prepend_scheme");
  const std::string name = scheme.is_null()
                               ? (field.maybe("add_prefix_space").flag(true) ? "always" : "never")
                               : scheme.text();
  if (name == "always" || name == "first") {
    stage.prefixed = name == "first" ? Prefixed::first : Prefixed::always;
  } else if (name != "never") {
    scheme.refuse("\"{}\" is not supported; supported: always, first, never",
                  JsonField::printable(name));
  }
  if (field.maybe("split").flag(true)) {
    stage.pattern.push_back(Pattern::literal(space));
    stage.behaviour = Behaviour::with_next;
  }
  stages_.push_back(std::move(stage));
}

void PreTokenizer::add_split(const JsonField& field) {
  Stage stage;
  stage.pattern.push_back(Pattern::read(field.at("pattern")));
  const JsonField behaviour = field.at("behavior");
  const std::string& name = behaviour.text();
  if (name == "Isolated") {
    stage.behaviour = Behaviour::isolated;
  } else if (name == "Removed") {
    stage.behaviour = Behaviour::removed;
  } else if (name == "MergedWithPrevious") {
    stage.behaviour = Behaviour::with_previous;
  } else if (name == "MergedWithNext") {
    stage.behaviour = Behaviour::with_next;
  } else if (name == "Contiguous") {
    stage.behaviour = Behaviour::contiguous;
  } else {
    behaviour.refuse("\"{}\" is not supported; supported: {}", JsonField::printable(name),
                     kBehaviours);
  }
  stage.invert = field.maybe("invert").flag(false);
  stages_.push_back(std::move(stage));
}

/// Cuts are those of the first stage whose matches depend on their surroundings: stages before it
/// cut at single characters, and those behind it see its parts only. Where there is none, words
/// can be cut. A stage that changes texts must come before all cuts.
void PreTokenizer::find_cuts() {
  cut_stage_ = stages_.size();
  cuts_ = true;
  bool split = false;
  for (size_t i = 0; i < stages_.size() && cut_stage_ == stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    const bool changes = !stage.space.empty() || stage.prefixed != Prefixed::never;
    cuts_ = cuts_ && !(split && changes);
    if (!stage.space.empty() && space_bytes_ == 1) {
      space_bytes_ = stage.space.size();
    }
    if (!stage.pattern.empty()) {
      split = true;
      if (!stage.pattern[0].is_local()) {
        cut_stage_ = i;
        cuts_ = cuts_ && !stage.pattern[0].looks_back();
      }
    }
  }
}

size_t PreTokenizer::cut_bytes(std::string_view text) const {
  return text.size() + (space_bytes_ == 1 ? 0
                                          : (space_bytes_ - 1) *
                                                static_cast<size_t>(std::ranges::count(text, ' ')));
}

void PreTokenizer::run(std::string_view text, const Place& place, Memory& memory,
                       WordSink& sink) const {
  memory.texts.resize(stages_.size());
  if (!text.empty()) {
    run_stage(0, {.text = text, .place = place}, memory, sink);
  }
}

/// The text with the stage's replacements and prefix.
std::string_view PreTokenizer::changed(size_t number, const Part& part, Memory& memory) const {
  const Stage& stage = stages_[number];
  std::string& buffer = memory.texts[number];
  std::string_view text = part.text;
  if (!stage.space.empty() && text.find(' ') != std::string_view::npos) {
    buffer.clear();
    for (size_t at = 0; at < text.size();) {
      const size_t space = std::min(text.find(' ', at), text.size());
      buffer += text.substr(at, space - at);
      buffer += space < text.size() ? stage.space : std::string();
      at = space + 1;
    }
    text = buffer;
  }
  const bool cut_here = part.place.continues && part.at_start && number <= cut_stage_;
  const bool wanted = stage.prefixed == Prefixed::always ||
                      (stage.prefixed == Prefixed::first && part.place.first && part.at_start);
  if (wanted && !cut_here && !text.starts_with(stage.prefix)) {
    if (text.data() == buffer.data()) {
      buffer.insert(0, stage.prefix);
    } else {
      buffer = stage.prefix;
      buffer += text;
    }
    text = buffer;
  }
  return text;
}

bool PreTokenizer::joins(Behaviour behaviour, bool match_before, bool match) {
  switch (behaviour) {
    case Behaviour::with_previous:
      return match && !match_before;
    case Behaviour::with_next:
      return !match && match_before;
    case Behaviour::contiguous:
      return match == match_before;
    default:
      return false;
  }
}

void PreTokenizer::run_stage(size_t number, Part part, Memory& memory, WordSink& sink) const {
  if (number == stages_.size()) {
    const bool cuttable = cuts_ && cut_stage_ == number;
    if (cuttable && !part.at_start) {
      sink.cut(part.place.rest + part.text.size());
    }
    sink.word(part.text, cuttable, part.place.rest);
    return;
  }
  const Stage& stage = stages_[number];
  const std::string_view text = changed(number, part, memory);
  if (stage.pattern.empty()) {
    part.text = text;
    run_stage(number + 1, part, memory, sink);
    return;
  }
  const Pattern& pattern = stage.pattern[0];
  const bool cuts_here = cuts_ && cut_stage_ == number;
  const bool undecided_end = part.place.open && cut_stage_ == number;
  size_t begin = 0;  // of the piece that may still grow
  size_t end = 0;
  bool has_piece = false;
  bool match_before = false;
  const auto give = [&] {
    if (!has_piece || begin == end) {
      return;
    }
    const bool at_start = part.at_start && begin == 0;
    Part piece{.text = text.substr(begin, end - begin), .place = part.place, .at_start = at_start};
    piece.place.rest = part.place.rest + (text.size() - end);
    piece.place.open = part.place.open && end == text.size();
    if (cuts_here && !at_start) {
      sink.cut(piece.place.rest + piece.text.size());
    }
    run_stage(number + 1, piece, memory, sink);
  };
  const auto take = [&](size_t from, size_t to, bool is_match) {
    const bool match = is_match != stage.invert;
    if (has_piece && joins(stage.behaviour, match_before, match)) {
      end = to;
    } else {
      give();
      begin = from;
      end = to;
      has_piece = stage.behaviour != Behaviour::removed || !match;
    }
    match_before = match;
  };
  size_t done = 0;
  size_t from = 0;
  Pattern::Found found = Pattern::Found::nothing;
  Pattern::Match match;
  while (from <= text.size()) {
    found = pattern.find(text, from, undecided_end, memory.pattern, match);
    if (found != Pattern::Found::match) {
      break;
    }
    if (done < match.begin) {
      take(done, match.begin, false);
    }
    take(match.begin, match.end, true);
    done = match.end;
    // After an empty match the next search begins a code point later.
    from = match.end > match.begin   ? match.end
           : match.end < text.size() ? match.end + utf8_bytes(text[match.end])
                                     : match.end + 1;
  }
  if (done < text.size() && found != Pattern::Found::undecided) {
    take(done, text.size(), false);
  }
  give();
}

}  // namespace espalier::io
