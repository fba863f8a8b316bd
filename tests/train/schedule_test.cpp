// Learning rates against transformers' get_scheduler: schedules.json holds what it set in every step.
#include "train/schedule.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace deltatune {
namespace {

json::Value stored() {
  return json::parse_file(DELTATUNE_SOURCE_DIR "/tests/train/schedules.json");
}

TEST(ScheduleTest, RatesEqualTransformers) {
  const json::Value root = stored();
  const json::Array& cases = root.at("cases").as_array();
  EXPECT_EQ(cases.size(), 24u);
  for (const json::Value& c : cases) {
    const Schedule schedule{c.at("type").as_string(), c.at("peak").as_number(),
                            c.at("warmup_steps").as_integer(), c.at("total_steps").as_integer()};
    const json::Array& rates = c.at("rates").as_array();
    for (size_t i = 0; i < rates.size(); ++i) {
      EXPECT_NEAR(schedule.rate(static_cast<int64_t>(i)), rates[i].as_number(), 1e-15)
          << schedule.type << ", warm-up " << schedule.warmup_steps << " of " << schedule.total_steps
          << ", step " << i;
    }
  }
}

TEST(ScheduleTest, WarmupStepsEqualTransformers) {
  const json::Value root = stored();
  for (const json::Value& c : root.at("warmups").as_array()) {
    EXPECT_EQ(
        warmup_steps(c.at("steps").as_integer(), c.at("ratio").as_number(), c.at("total_steps").as_integer()),
        c.at("warmup_steps").as_integer())
        << json::dump(c);
  }
}

}  // namespace
}  // namespace deltatune
