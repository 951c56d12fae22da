// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace lode {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

// OpenSSL's calls below fail only for want of memory or of the algorithm itself.
Sha256::Sha256() : context_(std::make_unique<Context>()) {
  LODE_CHECK(context_->md != nullptr);
  LODE_CHECK(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  LODE_CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::HexDigest() {
  constexpr char kHex[] = "0123456789abcdef";
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  LODE_CHECK(EVP_DigestFinal_ex(context_->md, digest, &size) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += {kHex[digest[i] >> 4], kHex[digest[i] & 15]};
  return hex;
}

Result<std::string> Sha256OfFile(const std::string& path, FunctionRef<bool(int64_t)> progress) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const std::string message = path + ": " + std::strerror(errno);
    return errno == ENOENT ? NotFoundError(message) : IoError(message);
  }
  Sha256 hash;
  std::vector<std::byte> buffer(size_t{8} << 20);
  int64_t done = 0;
  Status status;
  while (status.ok()) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got == 0) break;
    if (got < 0) {
      if (errno != EINTR) status = IoError(path + ": " + std::strerror(errno));
      continue;
    }
    hash.Update(std::span(buffer).first(got));
    done += got;
    if (!progress(done)) status = CancelledError(path + ": checksum stopped");
  }
  ::close(fd);
  if (!status.ok()) return status;
  return hash.HexDigest();
}

}  // namespace lode
