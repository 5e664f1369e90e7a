#pragma once
// The numbers in a token file. Their type is, in this order: that of llm.c's header, of the note
// FILE.json of `espalier data tokenize`, of data.token_type, or of Megatron's index (NAME.idx
// beside NAME.bin); else uint16. Without header and note the content must not contradict it: files
// of int32, int64 or big-endian numbers are refused, and so are files of other formats.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "io/config/config.h"

namespace espalier::io {

struct TokenLayout {
  size_t header = 0;  ///< bytes before the first token
  int width = 1;      ///< bytes a token
};

/// Of a file of kind "tokens" that is no text. Throws Failure: the cause, and the key to set or the
/// conversion.
TokenLayout token_layout(const std::filesystem::path& path, std::span<const uint8_t> content,
                         const DataConfig& data);

/// Throws Failure if a file begins as one of a format that holds no bare tokens, and is no text:
/// NumPy, HDF5, Parquet.
void check_no_container(const std::filesystem::path& path, std::span<const uint8_t> content);

/// "FILE.json"
std::string note_of(const std::string& path);
/// The vocabulary by the notes beside the files, the largest; 0: none has a note.
int64_t noted_vocabulary(std::span<const std::string> files);

}  // namespace espalier::io
