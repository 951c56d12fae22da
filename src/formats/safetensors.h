// SPDX-License-Identifier: Apache-2.0
// safetensors reader. A file is: the header's length (8 bytes), a JSON header
// {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}, tensor data without
// gaps. Specification: https://github.com/huggingface/safetensors#format
#ifndef LODE_FORMATS_SAFETENSORS_H_
#define LODE_FORMATS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace lode {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;           // as stored: "BF16"
  std::vector<int64_t> shape;  // contiguous dimension last; may be empty (one element)
  uint64_t begin = 0;          // file offset of the first byte
  uint64_t end = 0;
};

// Parses and checks the header of a whole file: names used once, sizes that agree with shape and
// type, and data that covers the file exactly, without overlap or gap. `origin` names the file in
// messages. Errors: Corruption; Unsupported (unknown dtype).
Result<std::vector<SafetensorsTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                        const std::string& origin);

// Parses model.safetensors.index.json: tensor name -> name of the file it is in. Corruption when it
// is not that, or when a file name would leave the folder.
Result<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text,
                                                                 const std::string& origin);

}  // namespace lode

#endif  // LODE_FORMATS_SAFETENSORS_H_
