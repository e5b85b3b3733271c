#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ductile/base/error.h"
#include "ductile/base/json_fields.h"
#include "ductile/base/json_value.h"
#include "ductile/sched/goodput.h"
#include "ductile/sched/job.h"

namespace ductile::sched {

// Reads what Ductile itself has saved: what `read` refuses as invalid_argument is damage here.
template <class Read>
auto as_data_loss(Read&& read) {
  try {
    return std::forward<Read>(read)();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) throw;
    fail(ErrorCode::data_loss, "{}", e.message());
  }
}

// No saved number of seconds and no rate is larger, and no count.
constexpr double kMostSaved = 1e300;
constexpr int32_t kMostCount = 1 << 30;
// What is kept for each job is kept for at most so many.
constexpr size_t kMostSavedJobs = 1 << 20;

int32_t count_from(const JsonFields& f, const nlohmann::json& v, const char* key);  // at least 1
// A list of `count` numbers; any number of them, up to `most`, where count is SIZE_MAX.
std::vector<double> numbers_from(const JsonFields& f, const nlohmann::json& v, const char* key,
                                 double low, double high, size_t count = SIZE_MAX,
                                 size_t most = SIZE_MAX);
// A list of numbers of jobs, each at most once.
std::vector<JobId> jobs_from(const JsonFields& f, const char* key);

nlohmann::json to_json(const PerfParams& perf);
PerfParams perf_from(const JsonFields& f);  // its "perf"
nlohmann::json to_json(std::span<const StepModel::Shape> shapes);
std::vector<StepModel::Shape> shapes_from(const JsonFields& f);  // its "shapes"
nlohmann::json to_json(const TypeModel& model);
TypeModel type_model_from(const nlohmann::json& v, const std::string& where);
nlohmann::json to_json(const GradientNoise& noise);
GradientNoise noise_from(const JsonFields& f, const nlohmann::json& v, const char* key);

}  // namespace ductile::sched
