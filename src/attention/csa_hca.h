// SPDX-License-Identifier: Apache-2.0
// csa_hca: reads a small share of the cached keys exactly and lets summaries stand for all others.
//
// The tokens before a query are cut into pages of 32 (retrieval/page_index.h). The first page (the
// sinks) and the last `window` tokens are always read. Of the pages between, those are read whose
// estimated share of the softmax mass, over all queries that share the selection, is large. Every
// other page is one entry of the softmax: its mean value, weighted with its estimated mass.
// KeepExact names pages that are read besides. So nothing is left out, and what is read is exact:
// with top_k large enough the result is that of `flash`.
//
// Queries of one KV head's group share a selection, and in prefill those of a few neighbouring
// tokens (one query tile of flash). See docs/attention.md for what it costs and loses.
#ifndef LODE_ATTENTION_CSA_HCA_H_
#define LODE_ATTENTION_CSA_HCA_H_

#include <memory>

#include "attention/attention.h"
#include "retrieval/calibration.h"

namespace lode {

// `calibration` must fit the model; layers without a projection, and those that slide, are exact.
std::unique_ptr<Attention> CreateCsaHcaAttention(const SparseOptions& options,
                                                 std::shared_ptr<const Calibration> calibration);

}  // namespace lode

#endif  // LODE_ATTENTION_CSA_HCA_H_
