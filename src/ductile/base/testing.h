#pragma once

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "ductile/base/error.h"

// For tests, of any module.
namespace ductile::testing {

// The code of the Error that `body` throws, and its text; a failure of the test where it throws
// none.
inline ErrorCode code_of(const std::function<void()>& body, std::string* text = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::internal;
}

}  // namespace ductile::testing
