#include "ductile/train/current_event.h"

#include <exception>

#include <c10/util/Exception.h>

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

}  // namespace ductile::train
