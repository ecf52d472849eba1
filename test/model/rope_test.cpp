// The angles of every scaling rule are transformers' (test/oracle/rope.py), near and far.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/config.h"

namespace kvart {
namespace {

using Json = nlohmann::json;

TEST(Rope, AnglesAreThoseOfTransformers) {
  std::ifstream file(std::string(KVART_TEST_DATA) + "/model/data/rope.json");
  const Json cases = Json::parse(file, nullptr, false);
  ASSERT_TRUE(cases.is_array());
  ASSERT_EQ(cases.size(), 50u);
  const std::vector<int32_t> positions = {0, 1, 8191, 8192, 20000, 131071};
  for (const Json& one : cases) {
    const std::string name = one["name"].get<std::string>();
    const auto length = one["length"].get<int64_t>();
    const auto config = config_from_json(one["config"].dump(), "config.json");
    ASSERT_TRUE(config.ok()) << name << config.error().message;
    ASSERT_TRUE(check_rope(*config).ok()) << name << check_rope(*config).error().message;
    RopeAngles angles(rope_config(*config, LayerRope::global, RopePairing::halves, length));
    angles.assign(positions);
    const double magnitude = one["magnitude"].get<double>();
    for (size_t row = 0; row < positions.size(); ++row) {
      for (size_t i = 0; i < 32; ++i) {
        const double frequency = one["frequencies"][i].get<double>();
        // Their frequencies are computed in 32 bits: some 8 units of 2^-24, more the further on.
        const double tolerance = 1e-6 + 5e-7 * positions[row] * frequency;
        const auto at = static_cast<int64_t>(i);
        const double angle = positions[row] * frequency;
        EXPECT_NEAR(angles.cos(static_cast<int64_t>(row))[at], magnitude * std::cos(angle),
                    tolerance * magnitude)
            << name << " length " << length << " position " << positions[row] << " pair " << i;
        EXPECT_NEAR(angles.sin(static_cast<int64_t>(row))[at], magnitude * std::sin(angle),
                    tolerance * magnitude)
            << name << " length " << length << " position " << positions[row] << " pair " << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvart
