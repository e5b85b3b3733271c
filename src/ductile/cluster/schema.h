#pragma once

#include <string>

#include "ductile/cluster/database.h"

namespace ductile::cluster {

// The number of the newest schema: how many migrations there are.
int newest_schema();

// The SQL that leads from schema `from` to the next one; throws invalid_argument where there is
// none. For tests of stores that an older Ductile wrote.
std::string migration(int from);

// Brings the file to the newest schema, in one transaction: all of it or nothing. Throws conflict
// if a newer Ductile wrote the file, data_loss if it is not a store of ours; both leave it as it
// is.
void migrate(Database& database);

// Throws as migrate() does, and data_loss if nothing was ever written to the file.
void require_written(Database& database);

// Throws as require_written() does, and conflict if the file is older: it has to be migrated first.
void require_newest_schema(Database& database);

}  // namespace ductile::cluster
