#include "ductile/dashboard/dashboard.h"

#include <iterator>

#include "ductile/page/assets.h"

namespace ductile::dashboard {

// As CMake embeds them.
extern const std::string_view kIndexHtml, kIconSvg, kDashboardCss, kMainJs, kServiceJs, kPartsJs,
    kFiguresJs, kJobsJs, kJobJs, kClusterJs, kAccountsJs, kActionsJs, kEventsJs, kApiJs, kSubmitJs,
    kSubmissionJs;

namespace {

constexpr std::string_view kScript = "text/javascript; charset=utf-8";
constexpr std::string_view kStyle = "text/css; charset=utf-8";

struct Row {
  std::string_view path, type;
  const std::string_view& text;
};

const Row kFiles[] = {
    {"/", "text/html; charset=utf-8", kIndexHtml},
    {"/assets/icon.svg", "image/svg+xml", kIconSvg},
    {"/assets/colors.css", kStyle, page::kColorsCss},
    {"/assets/theme.css", kStyle, page::kThemeCss},
    {"/assets/dashboard.css", kStyle, kDashboardCss},
    {"/assets/text.js", kScript, page::kTextJs},
    {"/assets/axes.js", kScript, page::kAxesJs},
    {"/assets/charts.js", kScript, page::kChartsJs},
    {"/assets/main.js", kScript, kMainJs},
    {"/assets/service.js", kScript, kServiceJs},
    {"/assets/parts.js", kScript, kPartsJs},
    {"/assets/figures.js", kScript, kFiguresJs},
    {"/assets/jobs.js", kScript, kJobsJs},
    {"/assets/job.js", kScript, kJobJs},
    {"/assets/cluster.js", kScript, kClusterJs},
    {"/assets/accounts.js", kScript, kAccountsJs},
    {"/assets/actions.js", kScript, kActionsJs},
    {"/assets/events.js", kScript, kEventsJs},
    {"/assets/api.js", kScript, kApiJs},
    {"/assets/submit.js", kScript, kSubmitJs},
    {"/assets/submission.js", kScript, kSubmissionJs},
};

}  // namespace

std::optional<File> file(std::string_view path) {
  for (const Row& row : kFiles) {
    if (row.path == path) return File{row.type, row.text};
  }
  return std::nullopt;
}

}  // namespace ductile::dashboard
