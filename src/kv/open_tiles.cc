// SPDX-License-Identifier: Apache-2.0
#include "kv/open_tiles.h"

#include <cstring>
#include <new>
#include <vector>

#include "base/check.h"
#include "kv/kv_cache.h"

namespace lode {
namespace {

constexpr auto kAlignment = std::align_val_t{kernels::kKvTileAlignment};

const KvCodec& OpenCodec(KvDType dtype) {
  return CodecFor(CodecFor(dtype).open_dtype);
}

}  // namespace

void OpenTiles::Free::operator()(std::byte* p) const {
  ::operator delete[](p, kAlignment);
}

OpenTiles::OpenTiles(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim, KvDTypes dtypes)
    : key_codec_(&OpenCodec(dtypes.key)),
      value_codec_(&OpenCodec(dtypes.value)),
      num_kv_heads_(num_kv_heads),
      num_places_(num_layers * num_kv_heads) {
  const KvTileShape largest = {.head_dim = head_dim, .tokens = kernels::kKvTileTokens};
  key_bytes_ = key_codec_->key_tile_bytes(largest);
  value_bytes_ = value_codec_->value_tile_bytes(largest);
  const auto size = static_cast<size_t>(bytes());
  storage_.reset(static_cast<std::byte*>(::operator new[](size, kAlignment)));
  std::memset(storage_.get(), 0, size);  // slots not stored yet are read, with weight zero
}

int64_t OpenTiles::BytesFor(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim,
                            KvDTypes dtypes) {
  const KvTileShape largest = {.head_dim = head_dim, .tokens = kernels::kKvTileTokens};
  return num_layers * num_kv_heads *
         (OpenCodec(dtypes.key).key_tile_bytes(largest) +
          OpenCodec(dtypes.value).value_tile_bytes(largest));
}

KvTile OpenTiles::Tile(int32_t layer, int32_t kv_head, const KvTileShape& shape) const {
  return {.keys = Keys(layer, kv_head),
          .values = Values(layer, kv_head),
          .key_codec = key_codec_,
          .value_codec = value_codec_,
          .shape = shape};
}

void OpenTiles::Store(int32_t layer, int32_t kv_head, const KvTileShape& shape, int64_t first_slot,
                      int64_t num_slots, const float* k, const float* v, int64_t stride) {
  key_codec_->store_keys(Keys(layer, kv_head), shape, first_slot, num_slots, k, stride);
  value_codec_->store_values(Values(layer, kv_head), shape, first_slot, num_slots, v, stride);
}

void OpenTiles::Seal(int32_t layer, int32_t kv_head, const KvTileShape& shape,
                     const KvCodec& key_codec, std::byte* keys, const KvCodec& value_codec,
                     std::byte* values) const {
  const std::byte* open_keys = Keys(layer, kv_head);
  const std::byte* open_values = Values(layer, kv_head);
  std::vector<float> decoded;
  if (key_codec.is_row_type()) {
    LODE_DCHECK(&key_codec == key_codec_);
    std::memcpy(keys, open_keys, static_cast<size_t>(key_codec.key_tile_bytes(shape)));
  } else {
    decoded.resize(static_cast<size_t>(shape.head_dim * kernels::kKvTileTokens));
    key_codec_->decode_keys(open_keys, shape, decoded.data());
    key_codec.seal_keys(keys, shape, decoded.data());
  }
  if (value_codec.is_row_type()) {
    LODE_DCHECK(&value_codec == value_codec_);
    std::memcpy(values, open_values, static_cast<size_t>(value_codec.value_tile_bytes(shape)));
  } else {
    decoded.resize(static_cast<size_t>(shape.head_dim * kernels::kKvTileTokens));
    value_codec_->decode_values(open_values, shape, decoded.data(), shape.head_dim);
    value_codec.seal_values(values, shape, decoded.data(), shape.head_dim);
  }
}

void OpenTiles::Reopen(int32_t layer, int32_t kv_head, const KvTileShape& shape,
                       const std::byte* keys, const std::byte* values) {
  std::memcpy(Keys(layer, kv_head), keys, static_cast<size_t>(key_codec_->key_tile_bytes(shape)));
  std::memcpy(Values(layer, kv_head), values,
              static_cast<size_t>(value_codec_->value_tile_bytes(shape)));
}

void OpenTiles::CopyFrom(const OpenTiles& other) {
  LODE_CHECK(bytes() == other.bytes());
  std::memcpy(storage_.get(), other.storage_.get(), static_cast<size_t>(bytes()));
}

}  // namespace lode
