#pragma once

#include "ductile/cli/parsed.h"

namespace ductile::cli {

void add_service_at(CLI::App& app, ServiceAt& at);

void add_live(CLI::App& app, Parsed& parsed);
void add_report(CLI::App& app, Parsed& parsed);
void add_service(CLI::App& app, Parsed& parsed);
void add_plan(CLI::App& app, Parsed& parsed);
void add_sim(CLI::App& app, Parsed& parsed);
void add_bench(CLI::App& app, Parsed& parsed);

}  // namespace ductile::cli
