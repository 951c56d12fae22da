// SPDX-License-Identifier: Apache-2.0
// The list of attention implementations. A new one is a row here, a line in CMakeLists.txt and a
// section in docs/attention.md; tests/conformance/attention_test picks it up by itself.
#include <algorithm>
#include <array>

#include "attention/attention.h"
#include "attention/csa_hca.h"
#include "attention/eager.h"
#include "attention/earlier_indices.h"
#include "attention/flash.h"
#include "attention/index_bytes.h"
#include "attention/index_graph_attention.h"
#include "attention/mla_rff.h"
#include "attention/sparse_index.h"
#include "attention/sparse_parameters.h"

namespace lode {
namespace {

struct Entry {
  std::string_view name;
  // Which SparseParameters it looks at; null: none.
  bool (*accepts)(const SparseParameter& parameter) = nullptr;
  Result<std::unique_ptr<Attention>> (*create)(const AttentionContext& context);
  // As IndexBytes; null: keeps nothing.
  int64_t (*index_bytes)(const AttentionContext& context, const IndexShape& shape) = nullptr;
};

constexpr std::array<Entry, 5> kEntries = {{
    {"eager", nullptr,
     [](const AttentionContext&) -> Result<std::unique_ptr<Attention>> {
       return CreateEagerAttention();
     }},
    {"flash", nullptr,
     [](const AttentionContext&) -> Result<std::unique_ptr<Attention>> {
       return CreateFlashAttention();
     }},
    {"mla_rff", nullptr,
     [](const AttentionContext& context) -> Result<std::unique_ptr<Attention>> {
       if (context.rff.d_proj < 1) {
         return InvalidArgumentError("mla_rff: expected a d_proj of at least 1, found " +
                                     std::to_string(context.rff.d_proj));
       }
       return CreateMlaRffAttention(context.rff);
     },
     [](const AttentionContext& context, const IndexShape& shape) {
       return RandomFourierFeatures::BytesFor(context.rff, shape.head_dim) +
              shape.num_layers * shape.num_kv_heads * MlaRffStateBytes(context.rff, shape.head_dim);
     }},
    {"csa_hca", [](const SparseParameter&) { return true; },
     [](const AttentionContext& context) -> Result<std::unique_ptr<Attention>> {
       if (context.calibration == nullptr) {
         return InvalidArgumentError("csa_hca needs a calibration of the model");
       }
       if (context.sparse.summary == SparseOptions::Summary::kFeedForward) {
         return InvalidArgumentError(
             "csa_hca: expected hca_summary mean or none, found ffn, which is for index_graph");
       }
       return CreateCsaHcaAttention(context.sparse, context.calibration);
     },
     [](const AttentionContext& context, const IndexShape& shape) {
       return (shape.num_layers - shape.sliding_layers) * shape.num_kv_heads *
              SparseIndex::BytesFor(context.sparse, shape.head_dim, shape.tokens);
     }},
    {"index_graph", [](const SparseParameter& parameter) { return parameter.in_index_graph; },
     [](const AttentionContext& context) -> Result<std::unique_ptr<Attention>> {
       return CreateIndexGraphAttention(context.sparse, context.fingerprint);
     },
     [](const AttentionContext& context, const IndexShape& shape) {
       return (shape.num_layers - shape.sliding_layers) * shape.num_kv_heads *
              IndexGraphStateBytes(context.sparse, shape.head_dim, shape.tokens);
     }},
}};

struct Alias {
  std::string_view alias;
  std::string_view name;
};

// Names that configurations of other engines use for the same computation.
constexpr std::array<Alias, 2> kAliases = {{{"sdpa", "flash"}, {"flash_attention_2", "flash"}}};

// "csa_hca" of "csa_hca:csa_top_k=1024", and what stands behind the colon.
std::string_view NameOf(std::string_view attention) {
  return attention.substr(0, attention.find(':'));
}
std::string_view ParametersOf(std::string_view attention) {
  return attention.substr(std::min(attention.size(), NameOf(attention).size() + 1));
}

// Null for an unknown name.
const Entry* Find(std::string_view attention) {
  std::string_view name = NameOf(attention);
  for (const Alias& alias : kAliases) {
    if (alias.alias == name) name = alias.name;
  }
  const auto entry = std::find_if(kEntries.begin(), kEntries.end(),
                                  [&](const Entry& e) { return e.name == name; });
  return entry == kEntries.end() ? nullptr : &*entry;
}

// The context with the parameters that the attention's name sets. Precondition: it is known.
Result<AttentionContext> ContextFor(std::string_view attention, const AttentionContext& context) {
  AttentionContext own = context;
  if (NameOf(attention).size() < attention.size()) {
    LODE_RETURN_IF_ERROR(
        SetSparseParameters(ParametersOf(attention), Find(attention)->accepts, own.sparse));
  }
  return own;
}

}  // namespace

AuditCounters& AuditCounters::operator+=(const AuditCounters& other) {
  rows += other.rows;
  missed_mass += other.missed_mass;
  output_error += other.output_error;
  recall += other.recall;
  code_rows += other.code_rows;
  code_recall += other.code_recall;
  return *this;
}

AuditCounters AuditCounters::operator-(const AuditCounters& earlier) const {
  return {.rows = rows - earlier.rows,
          .missed_mass = missed_mass - earlier.missed_mass,
          .output_error = output_error - earlier.output_error,
          .recall = recall - earlier.recall,
          .code_rows = code_rows - earlier.code_rows,
          .code_recall = code_recall - earlier.code_recall};
}

AttentionCounters& AttentionCounters::operator+=(const AttentionCounters& other) {
  keys += other.keys;
  keys_read += other.keys_read;
  bytes_read += other.bytes_read;
  rows += other.rows;
  unread_share += other.unread_share;
  select_seconds += other.select_seconds;
  attend_seconds += other.attend_seconds;
  pages_indexed += other.pages_indexed;
  audits += other.audits;
  return *this;
}

AttentionCounters AttentionCounters::operator-(const AttentionCounters& earlier) const {
  return {.keys = keys - earlier.keys,
          .keys_read = keys_read - earlier.keys_read,
          .bytes_read = bytes_read - earlier.bytes_read,
          .rows = rows - earlier.rows,
          .unread_share = unread_share - earlier.unread_share,
          .select_seconds = select_seconds - earlier.select_seconds,
          .attend_seconds = attend_seconds - earlier.attend_seconds,
          .pages_indexed = pages_indexed - earlier.pages_indexed,
          .audits = audits - earlier.audits};
}

void Attention::ChangeText(const TextChange& change) {
  Truncate(change.sequence, CommonLength(change.before, change.now));
}

std::vector<std::string> AttentionNames() {
  std::vector<std::string> names;
  names.reserve(kEntries.size());
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

bool NeedsCalibration(std::string_view name) {
  return NameOf(name) == "csa_hca";
}

bool NeedsFingerprint(std::string_view name) {
  return NameOf(name) == "index_graph";
}

int64_t IndexBytes(std::string_view name, const AttentionContext& context,
                   const IndexShape& shape) {
  const Entry* entry = Find(name);
  LODE_CHECK(entry != nullptr);
  if (entry->index_bytes == nullptr) return 0;
  const Result<AttentionContext> own = ContextFor(name, context);
  LODE_CHECK(own.ok());
  return entry->index_bytes(*own, shape);
}

Status CheckAttentionName(std::string_view name) {
  if (const Entry* entry = Find(name)) {
    if (NameOf(name).size() == name.size()) return OkStatus();
    if (entry->accepts == nullptr) {
      return InvalidArgumentError(std::string(NameOf(name)) + " has no parameters, found '" +
                                  std::string(ParametersOf(name)) + "'");
    }
    return ContextFor(name, {}).status().WithContext(NameOf(name));
  }
  std::string known;
  for (const Entry& entry : kEntries) {
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  for (const Alias& alias : kAliases) {
    known += ", " + std::string(alias.alias) + " (= " + std::string(alias.name) + ")";
  }
  return InvalidArgumentError("unknown attention implementation \"" + std::string(name) +
                              "\", expected one of " + known);
}

Result<std::unique_ptr<Attention>> CreateAttention(std::string_view name,
                                                   const AttentionContext& context) {
  LODE_RETURN_IF_ERROR(CheckAttentionName(name));
  LODE_ASSIGN_OR_RETURN(const AttentionContext own, ContextFor(name, context));
  return Find(name)->create(own);
}

}  // namespace lode
