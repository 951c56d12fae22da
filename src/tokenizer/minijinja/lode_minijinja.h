// SPDX-License-Identifier: Apache-2.0
// The C interface of the minijinja library (src/lib.rs says what each function promises).
#ifndef LODE_TOKENIZER_MINIJINJA_LODE_MINIJINJA_H_
#define LODE_TOKENIZER_MINIJINJA_LODE_MINIJINJA_H_

#include <cstddef>
#include <cstdint>

extern "C" {

enum LodeJinjaCode : int32_t {
  kLodeJinjaOk = 0,
  kLodeJinjaRaised = 1,       // the template called raise_exception; the text is its message
  kLodeJinjaUnsupported = 2,  // a construct that minijinja does not have
  kLodeJinjaLimit = 3,        // out of fuel, output or recursion
  kLodeJinjaFailed = 4,       // the template failed on this input
  kLodeJinjaInternal = 5,
};

// Owned by the library: give it to lode_jinja_free_text once.
struct LodeText {
  int32_t code;
  uint8_t* data;
  size_t size;
  size_t capacity;
};

struct LodeView {
  const uint8_t* data;
  size_t size;
};

// Writes strftime(format, local time now) to buffer, at most `capacity` bytes; returns how many.
using LodeStrftimeNow = size_t (*)(const char* format, size_t format_size, char* buffer,
                                   size_t capacity);

LodeText lode_jinja_compile(LodeView source, LodeView bos, LodeView eos,
                            LodeStrftimeNow strftime_now, void** handle);
LodeText lode_jinja_render(const void* handle, LodeView input, const LodeView* controls,
                           size_t num_controls, LodeText* marks);
void lode_jinja_free(void* handle);
void lode_jinja_free_text(LodeText text);
}

#endif  // LODE_TOKENIZER_MINIJINJA_LODE_MINIJINJA_H_
