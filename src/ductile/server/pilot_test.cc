#include "ductile/server/pilot.h"

#include <gtest/gtest.h>

#include "ductile/base/error.h"
#include "ductile/server/pilot_impl.h"

namespace ductile::server {
namespace {

TEST(PilotTicket, IsReadBackFromItsPath) {
  const PilotTicket ticket{"/shared/me", "slurm-3", 17};
  EXPECT_EQ(ticket.path(), "/shared/me/pilots/slurm-3/17");
  const PilotTicket back = PilotTicket::at(ticket.path());
  EXPECT_EQ(back.folder, ticket.folder);
  EXPECT_EQ(back.node, ticket.node);
  EXPECT_EQ(back.generation, ticket.generation);
  for (const char* wrong : {"", "17", "pilots/slurm-3/17", "/a/pilots/b/x", "/a/other/b/17",
                            "/a/pilots/b/17/", "/a/pilots/b/-1", "/a/pilots/b/017"})
    EXPECT_THROW(PilotTicket::at(wrong), Error) << wrong;
}

TEST(PilotTicket, OnePilotHasIt) {
  const TempFolder folder;
  const PilotTicket ticket{folder.path(), "slurm-1", 1};
  EXPECT_EQ(current_generation(folder.path(), "slurm-1"), 0u);
  issue(ticket);
  EXPECT_EQ(current_generation(folder.path(), "slurm-1"), 1u);
  EXPECT_FALSE(claim_of(ticket));
  const PilotClaim first{"12", "n1", "10.0.0.1", 4711};
  claim(ticket, first);
  EXPECT_EQ(claim_of(ticket), first);
  try {  // Slurm runs the same job on another node, too
    claim(ticket, {"12", "n2", "10.0.0.2", 4712});
    FAIL() << "two pilots have one ticket";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::conflict);
  }
  EXPECT_EQ(claim_of(ticket), first);
  EXPECT_EQ(std::distance(fs::directory_iterator(ticket.path()), {}), 2);  // secret, claim
}

TEST(PilotTicket, ANewOneWithdrawsTheOneBefore) {
  const TempFolder folder;
  const PilotTicket old{folder.path(), "slurm-1", 1}, next{folder.path(), "slurm-1", 2};
  issue(old);
  issue(old);  // a service that was killed in between does it again
  EXPECT_FALSE(is_withdrawn(old));
  issue(next);
  EXPECT_TRUE(is_withdrawn(old));
  EXPECT_FALSE(is_withdrawn(next));
  withdraw(next);
  withdraw(next);
  EXPECT_TRUE(is_withdrawn(next));
  try {
    run_pilot(old.path(), "127.0.0.1");
    FAIL() << "a pilot without a ticket runs";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::not_found);
  }
}

TEST(PilotTicket, DamageIsNamed) {
  const TempFolder folder;
  const PilotTicket ticket{folder.path(), "slurm-1", 1};
  issue(ticket);
  write_file_atomic(ticket.path() / "claim", "{\"job\": 1");
  try {
    claim_of(ticket);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data_loss);
  }
  write_file_atomic(folder.path() / "pilots/slurm-1/current", "{}\n");
  EXPECT_THROW(current_generation(folder.path(), "slurm-1"), Error);
}

}  // namespace
}  // namespace ductile::server
