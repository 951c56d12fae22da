// SPDX-License-Identifier: Apache-2.0
// HttpClient: one streamed GET. Follows redirects, obeys the usual proxy variables, gives up on a
// connection that stalls for 30 s. libcurl does the work and stays behind this header.
#ifndef LODE_NET_HTTP_CLIENT_H_
#define LODE_NET_HTTP_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/function_ref.h"
#include "base/status.h"

namespace lode {

struct HttpRequest {
  std::string url;     // http or https
  int64_t offset = 0;  // above 0: ask for the bytes from there on
};

// Of the final answer, after redirects.
struct HttpHead {
  int status = 0;            // 200, 206, 404, ...
  int64_t offset = 0;        // of the body's first byte: 0 unless the server honoured the range
  int64_t total_bytes = -1;  // of the whole file; -1: the server does not say
};

struct HttpCallbacks {
  // Called once before the body. An error stops the transfer and is returned.
  FunctionRef<Status(const HttpHead&)> on_head;
  // Called with the body piece by piece, only for status 200 and 206.
  FunctionRef<Status(std::span<const std::byte>)> on_body;
};

// Runs the request to its end. Errors: InvalidArgument (not a URL), Io (no connection, cut,
// stalled, certificate; with libcurl's reason), or what a callback returned. An answer such as 404
// is no error here: on_head decides.
Status HttpGet(const HttpRequest& request, const HttpCallbacks& callbacks);

}  // namespace lode

#endif  // LODE_NET_HTTP_CLIENT_H_
