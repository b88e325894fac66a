#include "th/client/process_guard.h"

#include <sys/wait.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/status_matchers.h"

namespace th {
namespace {

// Runs `check` in a forked child; its result.
template <typename Check>
bool HoldsInChild(Check check) {
  const pid_t child = fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(ProcessGuardTest, AllowsTheProcessThatMadeIt) {
  const ProcessGuard guard;
  EXPECT_FALSE(guard.forked());
  EXPECT_OK(guard.Check());
}

TEST(ProcessGuardTest, RefusesAChildAndNamesTheParent) {
  const ProcessGuard guard;
  const std::string parent = absl::StrCat("forked from pid ", getpid(), " ");
  EXPECT_TRUE(HoldsInChild([&] {
    return guard.forked() && guard.Check().code() == absl::StatusCode::kFailedPrecondition &&
           absl::StrContains(guard.Check().message(), parent);
  }));
}

TEST(OwningProcessTest, AChildIsAnotherProcessUntilItTakesOver) {
  OwningProcess owner;
  EXPECT_FALSE(owner.IsThis());
  owner.TakeOver();
  EXPECT_TRUE(owner.IsThis());
  EXPECT_TRUE(HoldsInChild([&] {
    const bool was_this = owner.IsThis();
    owner.TakeOver();
    return !was_this && owner.IsThis();
  }));
  EXPECT_TRUE(owner.IsThis());
}

TEST(ProcessGuardTest, AProcessClaimsOnceAndItsChildCannot) {
  EXPECT_OK(ClaimProcess());
  EXPECT_OK(ClaimProcess());
  EXPECT_TRUE(
      HoldsInChild([] { return ClaimProcess().code() == absl::StatusCode::kFailedPrecondition; }));
}

}  // namespace
}  // namespace th
