#pragma once
// Small SentencePiece models, trained by its library. Equal arguments give equal models.
#include <string>
#include <vector>

namespace espalier {

/// The bytes of a tokenizer.model. `options`: of spm_train, separated by spaces.
std::string train_sentencepiece(const std::string& options,
                                const std::vector<std::string>& sentences);

/// English, German and code, with runs of spaces: enough for some hundred pieces.
const std::vector<std::string>& sentencepiece_sentences();

/// As Llama 2's: BPE of 400 pieces, 256 of them bytes; texts are not normalized.
const std::string& llama_like_sentencepiece();
/// As T5's: unigram, texts are normalized (nmt_nfkc), spaces at the ends are removed.
const std::string& t5_like_sentencepiece();

}  // namespace espalier
