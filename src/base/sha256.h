// SPDX-License-Identifier: Apache-2.0
// Sha256: the checksum of downloaded files (OpenSSL's EVP, which uses the CPU's own instructions).
#ifndef LODE_BASE_SHA256_H_
#define LODE_BASE_SHA256_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/function_ref.h"
#include "base/status.h"

namespace lode {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  // 64 lower-case hexadecimal digits. Call once, last.
  std::string HexDigest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// The checksum of a file's contents. `progress(bytes_done)` is called about every 8 MiB; it returns
// false to stop (Cancelled). Errors: NotFound, Io.
Result<std::string> Sha256OfFile(const std::string& path,
                                 FunctionRef<bool(int64_t bytes_done)> progress);

}  // namespace lode

#endif  // LODE_BASE_SHA256_H_
