// SPDX-License-Identifier: Apache-2.0
#include "net/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/check.h"

namespace lode {
namespace {

constexpr long kConnectSeconds = 20;
constexpr long kStallSeconds = 30;
constexpr long kMaxRedirects = 10;

struct Transfer {
  CURL* curl;
  const HttpCallbacks& callbacks;
  HttpHead head = {};
  bool head_done = false;
  Status status = {};  // of a callback that stopped the transfer
};

// "Content-Range: bytes 100-199/200" -> offset 100, total 200.
void ParseContentRange(std::string_view value, HttpHead& head) {
  const auto number = [](std::string_view text, int64_t& out) {
    std::from_chars(text.data(), text.data() + text.size(), out);
  };
  if (const size_t bytes = value.find("bytes "); bytes != std::string_view::npos) {
    number(value.substr(bytes + 6), head.offset);
  }
  if (const size_t slash = value.find('/'); slash != std::string_view::npos) {
    number(value.substr(slash + 1), head.total_bytes);
  }
}

size_t OnHeader(char* data, size_t, size_t size, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  const std::string_view line(data, size);
  if (line.starts_with("HTTP/")) transfer.head = HttpHead();  // the next answer of a redirect chain
  constexpr std::string_view kRange = "content-range:";
  const bool is_range = line.size() > kRange.size() &&
                        std::equal(kRange.begin(), kRange.end(), line.begin(), [](char a, char b) {
                          return a == (b >= 'A' && b <= 'Z' ? b + 32 : b);
                        });
  if (is_range) ParseContentRange(line.substr(kRange.size()), transfer.head);
  return size;
}

// Calls on_head once, when status and length are final.
bool DeliverHead(Transfer& transfer) {
  if (transfer.head_done) return true;
  transfer.head_done = true;
  long status = 0;
  curl_off_t length = -1;
  curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(transfer.curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  transfer.head.status = static_cast<int>(status);
  if (status == 200) transfer.head.total_bytes = length;
  transfer.status = transfer.callbacks.on_head(transfer.head);
  return transfer.status.ok();
}

size_t OnBody(char* data, size_t, size_t size, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  if (!DeliverHead(transfer)) return 0;  // any other number than size stops the transfer
  if (transfer.head.status == 200 || transfer.head.status == 206) {
    transfer.status = transfer.callbacks.on_body(std::as_bytes(std::span<const char>(data, size)));
  }
  return transfer.status.ok() ? size : 0;
}

void SetOptions(CURL* curl, const HttpRequest& request, Transfer& transfer, char* error) {
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "lodestone");
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
  if (request.offset > 0) {
    curl_easy_setopt(curl, CURLOPT_RANGE, (std::to_string(request.offset) + "-").c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
}

}  // namespace

Status HttpGet(const HttpRequest& request, const HttpCallbacks& callbacks) {
  static std::once_flag once;
  std::call_once(once, [] { LODE_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  if (curl == nullptr) return InternalError("libcurl could not be initialised");

  char error[CURL_ERROR_SIZE] = "";
  Transfer transfer{.curl = curl.get(), .callbacks = callbacks};
  SetOptions(curl.get(), request, transfer, error);
  const CURLcode code = curl_easy_perform(curl.get());
  if (!transfer.status.ok()) return transfer.status;
  if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL) {
    return InvalidArgumentError(request.url + ": expected an http or https URL");
  }
  if (code != CURLE_OK) {
    return IoError(request.url + ": " + (*error != '\0' ? error : curl_easy_strerror(code)));
  }
  DeliverHead(transfer);  // an answer without a body
  return transfer.status;
}

}  // namespace lode
