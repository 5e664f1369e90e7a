#include "io/tokenizer/post_processor.h"

namespace espalier::io {

PostProcessor PostProcessor::read(const JsonField& field) {
  PostProcessor out;
  if (!field.is_null()) {
    out.add(field);
  }
  return out;
}

void PostProcessor::add(const JsonField& field) {
  const std::string& type = field.type();
  if (type == "Sequence") {
    for (const JsonField& element : field.at("processors").elements()) {
      add(element);
    }
  } else if (type == "TemplateProcessing") {
    add_template(field);
  } else if (type != "ByteLevel") {  // that one changes offsets only
    field.refuse_type("TemplateProcessing, ByteLevel, Sequence");
  }
}

void PostProcessor::add_template(const JsonField& field) {
  PostProcessor own;
  bool seen = false;  // the text
  for (const JsonField& piece : field.at("single").elements()) {
    if (const JsonField text = piece.maybe("Sequence"); !text.is_null()) {
      if (seen || text.at("id").text() != "A") {
        piece.refuse("is a second text; a template of one text is supported");
      }
      seen = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").at("id").text();
    for (const JsonField& id : field.at("special_tokens").at(name).at("ids").elements()) {
      (seen ? own.after : own.before).push_back(static_cast<int32_t>(id.number(int64_t{1} << 24)));
    }
  }
  if (!seen) {
    field.at("single").refuse("has no place for the text: {{\"Sequence\": {{\"id\": \"A\"}}}}");
  }
  // A later processor's tokens are around those of earlier ones.
  before.insert(before.begin(), own.before.begin(), own.before.end());
  after.insert(after.end(), own.after.begin(), own.after.end());
}

}  // namespace espalier::io
