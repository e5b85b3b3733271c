#include "ductile/train/current_event.h"

#include <exception>
#include <new>
#include <string>
#include <variant>

#include <c10/util/Exception.h>

#include "ductile/base/error.h"
#include "ductile/train/torch_error.h"

namespace ductile::train {

control::WorkerEvent event_of_current(control::Generation generation) {
  try {
    throw;
  } catch (const c10::Error& e) {
    return control::event_of(error_of(e), generation);
  } catch (const std::exception& e) {
    return control::event_of(e, generation);
  }
}

control::WorkerEvent restore_event_of_current(control::Generation generation) {
  try {
    throw;
  } catch (const c10::Error& e) {
    return control::restore_event_of(error_of(e), generation);
  } catch (const std::exception& e) {
    return control::restore_event_of(e, generation);
  }
}

control::JobError load_error_of_current() {
  constexpr const char* kRemedy =
      "; the job's model, gradients and optimiser state do not fit beside what else this host "
      "runs: free memory there, start fewer workers on it, or divide the state among more hosts "
      "(train.shard_optimizer = true)";
  try {
    throw;
  } catch (const Error& e) {  // which says itself what is to be done
    return {e.what(), e.code()};
  } catch (const c10::Error& e) {
    const Error error = error_of(e);
    const bool refused = error.code() == ErrorCode::unavailable;  // no memory, then
    return {error.message() + (refused ? kRemedy : ""), error.code()};
  } catch (const std::bad_alloc&) {
    return {std::string("there is no memory left (std::bad_alloc)") + kRemedy,
            ErrorCode::unavailable};
  } catch (const std::exception& e) {
    const control::WorkerEvent event = control::event_of(e, 0);
    if (const auto* error = std::get_if<control::JobError>(&event)) return *error;
    return {e.what(), ErrorCode::unavailable};
  }
}

}  // namespace ductile::train
