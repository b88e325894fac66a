// GoogleTest matchers and assertions for absl::Status and absl::StatusOr<T>.
//
//   EXPECT_OK(registry.Apply(update));
//   ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Build(tensors));
//   EXPECT_THAT(layout.Find("wte"), IsOkAndHolds(Field(&Tensor::bytes, 16)));
//   EXPECT_THAT(contract.Publish(), StatusIs(absl::StatusCode::kFailedPrecondition));
//   EXPECT_THAT(contract.Publish(), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 3")));
//
// The pinned GoogleTest and Abseil have none of these. All names are in namespace th::testing.

#ifndef TESTING_STATUS_MATCHERS_H_
#define TESTING_STATUS_MATCHERS_H_

#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace th::testing {
namespace status_matchers_internal {

inline const absl::Status& GetStatus(const absl::Status& status) { return status; }

template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& result) {
  return result.status();
}

// Works on any `Status` or `StatusOr<T>`.
class IsOkMatcher {
 public:
  using is_gtest_matcher = void;

  template <typename StatusLike>
  bool MatchAndExplain(const StatusLike& actual, ::testing::MatchResultListener* listener) const {
    if (GetStatus(actual).ok()) return true;
    *listener << "whose status is " << GetStatus(actual);
    return false;
  }
  void DescribeTo(std::ostream* os) const { *os << "is OK"; }
  void DescribeNegationTo(std::ostream* os) const { *os << "is not OK"; }
};

class StatusIsMatcher {
 public:
  using is_gtest_matcher = void;

  StatusIsMatcher(absl::StatusCode code, ::testing::Matcher<std::string> message)
      : code_(code), message_(std::move(message)) {}

  template <typename StatusLike>
  bool MatchAndExplain(const StatusLike& actual, ::testing::MatchResultListener* listener) const {
    const absl::Status& status = GetStatus(actual);
    *listener << "whose status is " << status;
    return status.code() == code_ && message_.Matches(std::string(status.message()));
  }
  void DescribeTo(std::ostream* os) const {
    *os << "has code " << absl::StatusCodeToString(code_) << " and a message that ";
    message_.DescribeTo(os);
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "has a code other than " << absl::StatusCodeToString(code_) << " or a message that ";
    message_.DescribeNegationTo(os);
  }

 private:
  absl::StatusCode code_;
  ::testing::Matcher<std::string> message_;
};

// StatusOr<T> that is OK and whose value matches.
template <typename StatusOrType>
class IsOkAndHoldsMatcherImpl : public ::testing::MatcherInterface<StatusOrType> {
 public:
  using Value = typename std::decay_t<StatusOrType>::value_type;

  template <typename ValueMatcher>
  explicit IsOkAndHoldsMatcherImpl(const ValueMatcher& matcher)
      : value_matcher_(::testing::SafeMatcherCast<const Value&>(matcher)) {}

  bool MatchAndExplain(StatusOrType actual,
                       ::testing::MatchResultListener* listener) const override {
    if (!actual.ok()) {
      *listener << "whose status is " << actual.status();
      return false;
    }
    return value_matcher_.MatchAndExplain(*actual, listener);
  }
  void DescribeTo(std::ostream* os) const override {
    *os << "is OK and has a value that ";
    value_matcher_.DescribeTo(os);
  }
  void DescribeNegationTo(std::ostream* os) const override {
    *os << "is not OK or has a value that ";
    value_matcher_.DescribeNegationTo(os);
  }

 private:
  ::testing::Matcher<const Value&> value_matcher_;
};

template <typename ValueMatcher>
class IsOkAndHoldsMatcher {
 public:
  explicit IsOkAndHoldsMatcher(ValueMatcher matcher) : matcher_(std::move(matcher)) {}

  template <typename StatusOrType>
  operator ::testing::Matcher<StatusOrType>() const {  // NOLINT(google-explicit-constructor)
    return ::testing::Matcher<StatusOrType>(
        new IsOkAndHoldsMatcherImpl<const StatusOrType&>(matcher_));
  }

 private:
  ValueMatcher matcher_;
};

}  // namespace status_matchers_internal

inline status_matchers_internal::IsOkMatcher IsOk() { return {}; }

inline status_matchers_internal::StatusIsMatcher StatusIs(absl::StatusCode code) {
  return {code, ::testing::An<std::string>()};
}

// `message` is a matcher, or the exact text.
template <typename MessageMatcher>
status_matchers_internal::StatusIsMatcher StatusIs(absl::StatusCode code, MessageMatcher message) {
  return {code, ::testing::SafeMatcherCast<std::string>(std::move(message))};
}

// `value` is a matcher, or the value itself.
template <typename ValueMatcher>
status_matchers_internal::IsOkAndHoldsMatcher<std::decay_t<ValueMatcher>> IsOkAndHolds(
    ValueMatcher&& value) {
  return status_matchers_internal::IsOkAndHoldsMatcher<std::decay_t<ValueMatcher>>(
      std::forward<ValueMatcher>(value));
}

}  // namespace th::testing

#define TH_STATUS_MATCHERS_CONCAT_(a, b) a##b
#define TH_STATUS_MATCHERS_CONCAT(a, b) TH_STATUS_MATCHERS_CONCAT_(a, b)

#define EXPECT_OK(expression) EXPECT_THAT(expression, ::th::testing::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT(expression, ::th::testing::IsOk())

// `lhs` may declare a variable. A type with commas must be wrapped in parentheses by an alias.
#define ASSERT_OK_AND_ASSIGN(lhs, rexpr) \
  TH_ASSERT_OK_AND_ASSIGN_IMPL(TH_STATUS_MATCHERS_CONCAT(th_status_or_, __LINE__), lhs, rexpr)

#define TH_ASSERT_OK_AND_ASSIGN_IMPL(result, lhs, rexpr)                 \
  auto result = (rexpr);                                                 \
  ASSERT_TRUE(result.ok()) << #rexpr << " returned " << result.status(); \
  lhs = *std::move(result)

#endif  // TESTING_STATUS_MATCHERS_H_
