// Declarations for torch's FlightRecorderDetail.hpp, which includes a library that torch's packages
// leave out. Nothing here is ever called: only JSON dumps would need it.
#pragma once

#if defined(__has_include_next)
#if __has_include_next(<nlohmann/json.hpp>)
#define FC_HAVE_NLOHMANN_JSON
#endif
#endif

#if defined(FC_HAVE_NLOHMANN_JSON)
#include_next <nlohmann/json.hpp>
#else
#include <string>

namespace nlohmann {

class json {
 public:
  template <class Value>
  json& operator=(const Value& value);
  json& operator[](const std::string& key);
  std::string dump() const;
};

}  // namespace nlohmann
#endif
