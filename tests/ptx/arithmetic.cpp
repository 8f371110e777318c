// Instructions of PTX that compute: by their full names, modifiers included.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>

#include "core/numeric.h"
#include "machine.h"

namespace fastcomm::ptx {
namespace {

using Table = std::unordered_map<std::string, Execute>;

/// The end of an instruction's name, and the type of its first operand.
template <class T>
struct Type {
  const char* name;
};
template <class T>
constexpr std::tuple kOnly{Type<T>{""}};
constexpr std::tuple kPredicate{Type<uint8_t>{"pred"}};
constexpr std::tuple kBits{Type<uint16_t>{"b16"}, Type<uint32_t>{"b32"}, Type<uint64_t>{"b64"}};
constexpr std::tuple kBytes{Type<int8_t>{"s8"}, Type<uint8_t>{"u8"}};
constexpr std::tuple kSigned{Type<int16_t>{"s16"}, Type<int32_t>{"s32"}, Type<int64_t>{"s64"}};
constexpr std::tuple kUnsigned{Type<uint16_t>{"u16"}, Type<uint32_t>{"u32"}, Type<uint64_t>{"u64"}};
constexpr std::tuple kNarrow{Type<int16_t>{"s16"}, Type<uint16_t>{"u16"}, Type<int32_t>{"s32"},
                             Type<uint32_t>{"u32"}};
constexpr std::tuple kFloats{Type<float>{"f32"}, Type<double>{"f64"}};
constexpr std::tuple kRounded{Type<float>{"rn.f32"}, Type<double>{"rn.f64"}};
constexpr auto kIntegers = std::tuple_cat(kSigned, kUnsigned);
constexpr auto kNumbers = std::tuple_cat(kIntegers, kFloats);

template <class T>
T value_of(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
/// Results of devices have one NaN of 32 bits.
template <class T>
uint64_t bits_of(T value) {
  if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(value)) return 0x7fffffff;
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

/// A register as whatever a parameter is.
struct Operand {
  uint64_t bits;
  template <class T>
  operator T() const {
    return value_of<T>(bits);
  }
};

/// Calls F with as many operands as it has parameters.
template <class T, class F, class... Operands>
auto call(const Thread& thread, const Operation& operation, Operands... operands) {
  if constexpr (requires { F().template operator()<T>(operands...); }) {
    return F().template operator()<T>(operands...);
  } else {
    const Operand next{thread.registers[operation.from[sizeof...(operands)]]};
    return call<T, F>(thread, operation, operands..., next);
  }
}
template <class T, class F>
void execute(Thread& thread, const Operation& operation) {
  thread.registers[operation.to[0]] = bits_of(call<T, F>(thread, operation));
}

template <class T>
constexpr uint32_t kWidth = 8 * sizeof(T);

/// Bytes of two words, chosen by four digits; a digit above 7 repeats that byte's sign.
uint32_t permute(uint32_t low, uint32_t high, uint32_t digits) {
  const uint64_t both = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = digits >> (4 * i) & 15;
    uint32_t byte = both >> (8 * (digit & 7)) & 255;
    if (digit & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}

/// `base` with `count` bits of `value` from bit `at` on.
uint32_t insert_field(uint32_t value, uint32_t base, uint8_t at, uint8_t count) {
  const uint64_t field = ((uint64_t{1} << std::min<int>(count, 32)) - 1) << std::min<int>(at, 32);
  const uint64_t shifted = uint64_t{value} << std::min<int>(at, 32);
  return static_cast<uint32_t>((base & ~field) | (shifted & field));
}

Table make_table() {
  Table table;
  // Adds an instruction for each of these types; the last parameter is a lambda over the type.
  const auto add = [&]<class... T, class F>(const std::string& name,
                                            const std::tuple<Type<T>...>& types, F) {
    const auto add_one = [&]<class One>(Type<One> type) {
      table[name + type.name] = execute<One, F>;
    };
    std::apply([&](auto... type) { (add_one(type), ...); }, types);
  };
  const auto same = []<class T>(T a) { return a; };

  add("mov.", std::tuple_cat(kBits, kNumbers), same);
  add("selp.", std::tuple_cat(kBits, kNumbers),
      []<class T>(T a, T b, uint8_t first) { return first != 0 ? a : b; });
  add("cvta.to.global.u64", kOnly<uint64_t>, same);

  // Bits.
  const auto words = std::tuple_cat(kBits, kPredicate);
  add("and.", words, []<class T>(T a, T b) { return T(a & b); });
  add("or.", words, []<class T>(T a, T b) { return T(a | b); });
  add("xor.", words, []<class T>(T a, T b) { return T(a ^ b); });
  add("not.", kBits, []<class T>(T a) { return T(~a); });
  add("not.", kPredicate, []<class T>(T a) { return a == 0; });
  add("mov.pred", kOnly<uint64_t>, []<class T>(T a) { return a != 0; });
  // Shifts take 32 bits, of which none is ignored.
  add("shl.", kBits, []<class T>(T a, uint32_t by) { return by < kWidth<T> ? T(a << by) : T(0); });
  add("shr.", std::tuple_cat(kBits, kIntegers), []<class T>(T a, uint32_t by) {
    return T(a >> std::min(by, kWidth<T> - 1) >> (by >= kWidth<T> ? 1 : 0));
  });
  add("shf.r.wrap.b32", kOnly<uint32_t>,
      []<class T>(T low, T high, T by) { return T((uint64_t{high} << 32 | low) >> (by & 31)); });
  add("prmt.b32", kOnly<uint32_t>, []<class T>(T a, T b, T c) { return permute(a, b, c); });
  add("bfi.b32", kOnly<uint32_t>, []<class T>(T value, T base, uint8_t at, uint8_t count) {
    return insert_field(value, base, at, count);
  });

  // Numbers.
  const auto numbers = std::tuple_cat(kIntegers, kRounded);
  add("add.", numbers, []<class T>(T a, T b) { return T(a + b); });
  add("sub.", numbers, []<class T>(T a, T b) { return T(a - b); });
  add("mul.", kRounded, []<class T>(T a, T b) { return T(a * b); });
  add("mul.lo.", kIntegers, []<class T>(T a, T b) { return T(a * b); });
  add("mul.wide.", kNarrow, []<class T>(T a, T b) { return int64_t{a} * int64_t{b}; });
  add("mad.lo.", kIntegers, []<class T>(T a, T b, T c) { return T(a * b + c); });
  add("fma.", kRounded, []<class T>(T a, T b, T c) { return std::fma(a, b, c); });
  add("div.", kRounded, []<class T>(T a, T b) { return T(a / b); });
  // A division by zero gives ones, as on a device; the least number by -1 overflows.
  add("div.", kIntegers, []<class T>(T a, T b) { return b == 0 ? T(~T(0)) : T(__int128{a} / b); });
  add("sqrt.", kRounded, []<class T>(T a) { return std::sqrt(a); });
  add("min.", kIntegers, []<class T>(T a, T b) { return std::min(a, b); });
  add("max.", kIntegers, []<class T>(T a, T b) { return std::max(a, b); });
  add("neg.", std::tuple_cat(kSigned, kFloats), []<class T>(T a) { return T(-a); });
  add("abs.", std::tuple_cat(kSigned, kFloats), []<class T>(T a) { return T(std::abs(a)); });

  // Comparisons; of a NaN none but the last is true.
  const auto equal = std::tuple_cat(kBits, kNumbers);
  add("setp.eq.", equal, []<class T>(T a, T b) { return a == b; });
  add("setp.ne.", equal, []<class T>(T a, T b) { return a < b || a > b; });
  add("setp.lt.", kNumbers, []<class T>(T a, T b) { return a < b; });
  add("setp.le.", kNumbers, []<class T>(T a, T b) { return a <= b; });
  add("setp.gt.", kNumbers, []<class T>(T a, T b) { return a > b; });
  add("setp.ge.", kNumbers, []<class T>(T a, T b) { return a >= b; });
  add("setp.num.", kFloats, []<class T>(T a, T b) { return !std::isnan(a) && !std::isnan(b); });
  add("setp.nan.", kFloats, []<class T>(T a, T b) { return std::isnan(a) || std::isnan(b); });

  // Conversions.
  const auto add_conversions = [&]<class To>(Type<To> to) {
    add(std::string("cvt.") + to.name + ".", std::tuple_cat(kBytes, kIntegers),
        []<class From>(From a) { return static_cast<To>(a); });
  };
  std::apply([&](auto... to) { (add_conversions(to), ...); }, numbers);
  add("cvt.rn.f32.f64", kOnly<double>, []<class T>(T a) { return static_cast<float>(a); });
  add("cvt.f64.f32", kOnly<float>, []<class T>(T a) { return static_cast<double>(a); });
  add("cvt.f32.f16", kOnly<uint16_t>, []<class T>(T a) { return half_to_float(a); });
  add("cvt.rn.f16.f32", kOnly<float>,
      []<class T>(T a) { return std::isnan(a) ? uint16_t{0x7fff} : float_to_half(a); });
  return table;
}

}  // namespace

Execute arithmetic(const std::string& name) {
  static const Table table = make_table();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace fastcomm::ptx
