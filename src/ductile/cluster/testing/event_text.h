#pragma once

#include <string>

#include "ductile/cluster/api.h"
#include "ductile/cluster/event_feed_impl.h"

namespace ductile::cluster::testing {

// What an event stream that is at `after` is handed next; moves `after` behind it.
inline std::string event_text(Api& api, Revision& after, JobId job) {
  api.look_at_events();
  std::string text;
  if (api.newest_events().read(after, job, text) == EventFeed::Rest::forgotten)
    text = api.stored_events(after, job);
  return text;
}

}  // namespace ductile::cluster::testing
