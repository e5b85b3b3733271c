#include "ductile/base/json_value.h"

template class nlohmann::basic_json<>;
