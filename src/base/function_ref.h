// SPDX-License-Identifier: Apache-2.0
// FunctionRef<R(Args...)>: a non-owning view of a callable, two words wide. The callable must
// outlive the call.
#ifndef LODE_BASE_FUNCTION_REF_H_
#define LODE_BASE_FUNCTION_REF_H_

#include <memory>
#include <type_traits>
#include <utility>

namespace lode {

template <class Signature>
class FunctionRef;

template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> &&
             std::is_invocable_r_v<R, F&, Args...>)
  FunctionRef(F&& f) {
    using Callable = std::remove_reference_t<F>;
    if constexpr (std::is_function_v<Callable>) {
      // POSIX lets a function's address pass through void*.
      object_ = reinterpret_cast<void*>(&f);
      call_ = [](void* object, Args... args) -> R {
        return reinterpret_cast<Callable*>(object)(std::forward<Args>(args)...);
      };
    } else {
      object_ = const_cast<void*>(static_cast<const void*>(std::addressof(f)));
      call_ = [](void* object, Args... args) -> R {
        return (*static_cast<Callable*>(object))(std::forward<Args>(args)...);
      };
    }
  }

  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

}  // namespace lode

#endif  // LODE_BASE_FUNCTION_REF_H_
