#pragma once
// The post-processor of a tokenizer.json: tokens before and after those of a text.
#include <cstdint>
#include <vector>

#include "io/tokenizer/json_field.h"

namespace espalier::io {

struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;

  /// Adds none if the field is null.
  static PostProcessor read(const JsonField& field);

 private:
  void add(const JsonField& field);
  void add_template(const JsonField& field);
};

}  // namespace espalier::io
