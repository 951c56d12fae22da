// SPDX-License-Identifier: Apache-2.0
// SentenceEmbedder: what a text is about, as a vector. Texts that are about the same have vectors
// with a large cosine.
//
// A static embedding model, a vector per token of a vocabulary of its own: a text's vector is the
// mean over its tokens. That is how WordLlama's are read (github.com/dleemiller/WordLlama), whose
// Python package carries a model of 16 MB. Immutable after Open: any number of threads.
#ifndef LODE_OFFLINE_SENTENCE_EMBEDDER_H_
#define LODE_OFFLINE_SENTENCE_EMBEDDER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace lode {

class SentenceEmbedder {
 public:
  // `folder`, the installed package or any other, holds in itself or up to two levels below one
  // file *.safetensors with one matrix [vocabulary, dim] of F32, F16 or BF16, and one JSON file
  // with "tokenizer" in its name, of Hugging Face's kind. Errors: NotFound (not exactly one of
  // each), Corruption, Unsupported.
  static Result<std::unique_ptr<SentenceEmbedder>> Open(const std::string& folder);

  int64_t dim() const { return dim_; }
  // [dim]; zeros for a text without tokens. Tokens beyond the matrix have its last vector.
  std::vector<float> Embed(std::string_view text) const;

 private:
  SentenceEmbedder() = default;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<float> vectors_;  // [vocabulary][dim]
  int64_t dim_ = 0;
};

// Of vectors of equal length; 0 when one is all zero.
double Cosine(std::span<const float> a, std::span<const float> b);

}  // namespace lode

#endif  // LODE_OFFLINE_SENTENCE_EMBEDDER_H_
